"""Learn: what surrounds every lesson."""

TEXTS = {
    "en": {
        "learn.lessons": "Lessons",
        "learn.number": "Lesson {number} of {count}",
        "learn.last": "The end, and the beginning",
        "learn.present": "Presenter",
        "learn.present_hint": "Large text for a class (key P)",
        "learn.before": "Back",
        "learn.after": "Next",
        "learn.aha": "What this shows",
        "learn.trouble": "No answer from the app: check that it is still running. This page goes on asking.",
        "learn.lab": "Open this in the Lab",
        "learn.empty": "Nothing is recorded yet, so there is nothing to show here. Run a clip in the Lab, "
        "or add a recording to assets/recordings.",
        "learn.empty_figure": "No recorded run yet",
        "learn.source": "From a recorded run of the model “{model}”: “{prompt}”, {steps:1 step|# steps}, {blocks:1 block|# blocks}, "
        "on {device}.",
        "learn.plain": "{value}",
        "learn.estimate": "Estimated from the recording by the engine's own policy, assuming that the video takes "
        "the same course.",
        "learn.token_captured": "A real token of the embedded model: block {block}, {group}, step {step}, {width} values before rotation.",
        "learn.token_samples": "Eight real groups of 16 values ({group}, block {block}) laid side by side: "
        "this recording keeps one group per layer and step, not whole tokens.",
    },
    "zh-CN": {
        "learn.lessons": "课程",
        "learn.number": "第 {number} 课，共 {count} 课",
        "learn.last": "结束，也是开始",
        "learn.present": "演示模式",
        "learn.present_hint": "课堂用大字（按 P 键）",
        "learn.before": "上一课",
        "learn.after": "下一课",
        "learn.aha": "你看到了什么",
        "learn.trouble": "应用没有回应：请确认它仍在运行。本页会继续询问。",
        "learn.lab": "在实验室中打开",
        "learn.empty": "还没有录制，因此这里没有可展示的内容。请先在实验室运行一段视频，"
        "或把录制放进 assets/recordings。",
        "learn.empty_figure": "还没有录制",
        "learn.source": "来自模型“{model}”的一次录制：“{prompt}”，{steps} 步，{blocks} 个模块，设备 {device}。",
        "learn.plain": "{value}",
        "learn.estimate": "由引擎自己的策略根据录制估算，假设视频走同样的轨迹。",
        "learn.token_captured": "内置模型的一个真实 token：模块 {block}，{group}，第 {step} 步，旋转前的 {width} 个数值。",
        "learn.token_samples": "八组真实的 16 个数值（{group}，模块 {block}）并排放置："
        "这次录制每层每步只保留一组，而不是完整的 token。",
    },
}
