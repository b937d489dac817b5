"""Lesson 6: a copy of a copy."""

TEXTS = {
    "en": {
        "refresh.short": "A clean copy",
        "refresh.title": "A copy of a copy",
        "refresh.lead": "A skipped block reuses the change it computed last, with whatever rounding error is in it. "
        "Two skips, and the same error has been added three times. Purifying means: where a layer's input has "
        "outliers, compute at 16 bits before the change is kept.",
        "refresh.task": "Switch purifying on and off.",
        "refresh.switch": "Purify before keeping",
        "refresh.off": "Off",
        "refresh.on": "On",
        "refresh.line": "Block {block}, {group}: rounding error in the kept change",
        "refresh.line_alt": "Error of the kept change of one layer over the steps, with and without purifying",
        "refresh.axis_error": "error of the kept change",
        "refresh.without": "not purified",
        "refresh.with": "purified",
        "refresh.alarm": "How often each layer's outlier alarm rings (r > {limit})",
        "refresh.alarm_alt": "Share of computed calls per layer whose outlier ratio exceeds the limit",
        "refresh.axis_share": "of its computed calls",
        "refresh.gains": "What purifying bought in real videos, mean over {prompts:1 prompt|# prompts} with 95 % intervals",
        "refresh.gains_alt": "Gain in PSNR from purifying, against the reuse tolerance",
        "refresh.axis_reuse": "reuse tolerance",
        "refresh.axis_gain": "dB closer to FP16",
        "refresh.fact_share": "of the arithmetic purified to 16 bits",
        "refresh.fact_bits": "bits, computed only (without: {without})",
        "refresh.fact_error": "of the error in the cache removed",
        "refresh.aha_off": "Without purifying, every kept change carries its rounding error, and every skip adds it "
        "again. Switch purifying on and see how much of it goes.",
        "refresh.aha_never": "The alarm never rings in this recording: no input has a value above {limit} times its average. "
        "Here purifying changes nothing.",
        "refresh.aha_on": "Purifying touches {share} of the arithmetic and removes {removed} of the rounding error "
        "that the cache passes on.",
        "refresh.one_layer": "It is nearly all one layer's doing: {group} rings in {rings} of its calls.",
        "refresh.measured_little": "And the video? Measured over {prompts:1 prompt|# prompts}: {without} dB close to FP16 without, "
        "{with_} dB with. That is little: on this model purifying hardly pays.",
        "refresh.measured_much": "And the video? Measured over {prompts:1 prompt|# prompts}: {without} dB close to FP16 without, "
        "{with_} dB with. Here it pays.",
        "refresh.measured_worse": "And the video? Measured over {prompts:1 prompt|# prompts}: {without} dB close to FP16 without, "
        "{with_} dB with. On this model it does not help at all.",
        "refresh.unmeasured": "Whether the video gets better only real runs can tell; Compare shows them once they are measured.",
        "refresh.after_gelu": "Mind the ratio itself: after GELU most numbers are near zero, so the average is small and "
        "the alarm rings for inputs without real outliers.",
    },
    "zh-CN": {
        "refresh.short": "干净的副本",
        "refresh.title": "副本的副本",
        "refresh.lead": "被跳过的模块沿用上次算出的变化，连同其中的取整误差。跳过两次，同一个误差就加了三遍。"
        "“净化”的意思是：输入有离群值的层，先用 16 比特计算，再保存变化。",
        "refresh.task": "打开、关闭净化。",
        "refresh.switch": "保存前净化",
        "refresh.off": "关",
        "refresh.on": "开",
        "refresh.line": "模块 {block}，{group}：所保存变化中的取整误差",
        "refresh.line_alt": "一层所保存变化的误差随步数的变化，净化与不净化",
        "refresh.axis_error": "所保存变化的误差",
        "refresh.without": "未净化",
        "refresh.with": "已净化",
        "refresh.alarm": "各层多久出现一次离群值（r > {limit}）",
        "refresh.alarm_alt": "各层计算调用中离群比超过阈值的占比",
        "refresh.axis_share": "占其计算调用",
        "refresh.gains": "净化在真实视频中换来什么（{prompts} 条提示的平均，95 % 区间）",
        "refresh.gains_alt": "净化带来的 PSNR 增益，随复用容忍度变化",
        "refresh.axis_reuse": "复用容忍度",
        "refresh.axis_gain": "更接近 FP16 的 dB",
        "refresh.fact_share": "的运算净化到 16 比特",
        "refresh.fact_bits": "比特（只计计算部分；不净化：{without}）",
        "refresh.fact_error": "的缓存误差被去除",
        "refresh.aha_off": "不净化时，每个保存的变化都带着取整误差，每次跳过再加一遍。打开净化，看看能去掉多少。",
        "refresh.aha_never": "这次录制中从未出现离群值：没有输入的最大值超过平均值的 {limit} 倍。净化在这里什么也不改变。",
        "refresh.aha_on": "净化涉及 {share} 的运算，去掉了缓存所传递取整误差的 {removed}。",
        "refresh.one_layer": "几乎全是同一种层：{group} 的调用中有 {rings} 会响。",
        "refresh.measured_little": "那么视频呢？{prompts} 条提示的实测：与 FP16 的接近程度，不净化 {without} dB，净化 {with_} dB。"
        "差别很小：在这个模型上净化几乎不划算。",
        "refresh.measured_much": "那么视频呢？{prompts} 条提示的实测：与 FP16 的接近程度，不净化 {without} dB，净化 {with_} dB。"
        "在这里它是值得的。",
        "refresh.measured_worse": "那么视频呢？{prompts} 条提示的实测：与 FP16 的接近程度，不净化 {without} dB，净化 {with_} dB。"
        "在这个模型上它毫无帮助。",
        "refresh.unmeasured": "视频是否变好，只有真实运行才知道；测量之后，“对比”页会展示。",
        "refresh.after_gelu": "还要留意这个比值本身：GELU 之后大多数数接近零，平均值很小，没有真正离群值的输入也会超过阈值。",
    },
}
