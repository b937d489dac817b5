"""Lesson 5: spend the drift budget."""

TEXTS = {
    "en": {
        "budget.short": "The budget",
        "budget.title": "Spend the drift budget",
        "budget.lead": "From one step to the next a block adds nearly the same change. So it may skip: add the last "
        "change once more, and pay the expected drift out of a budget. When the budget would not cover the next "
        "step, the block computes, and the account starts again at zero.",
        "budget.task": "Give the blocks more budget, or less.",
        "budget.block": "Block",
        "budget.tolerance": "Reuse tolerance: the budget",
        "budget.ends_low": "careful: compute more",
        "budget.ends_high": "cheap: skip more",
        "budget.saw": "Block {block}: what it has spent, step by step (grey: skipped; ▲: bar goes on)",
        "budget.saw_alt": "Accumulated drift of one block over the steps, with the budget as a line; skipped steps are shaded",
        "budget.curve": "All blocks: what more budget buys, and what it takes",
        "budget.curve_alt": "Share of skipped cells and share of calls decided by the forecast, against the budget",
        "budget.spent": "spent so far",
        "budget.drift": "drift expected for one step",
        "budget.limit": "budget",
        "budget.skipped": "skipped",
        "budget.predictor": "layer calls that the forecast decides",
        "budget.axis_spent": "relative drift",
        "budget.fact_skipped": "of all block steps skipped",
        "budget.fact_predictor": "of layer calls decided by the forecast (without skipping: {without})",
        "budget.fact_bits": "bits on average (computed only: {computed})",
        "budget.aha_none": "At this budget nothing is skipped: no gain, only the trouble of looking.",
        "budget.aha": "At a budget of {budget}, {skipped} of all block steps are skipped. But after a skip there is no "
        "fresh Γ to forecast from, so the block takes 8 bits to be safe. The forecast of the last lesson decides "
        "{share} of the layer calls now, {without} without skipping. Two good ideas compete for the same cells.",
        "budget.limit_note": "A block skips at most {limit:1 step|# steps} in a row; the first {first:step|# steps} and the last {last:step|# steps} always compute.",
        "budget.partial": "Some drift was never observed in this recording; where the rule needs it, the replay computes.",
        "budget.measured": "These figures are estimated by replay; the recorded run itself measured: {bits} bits on average (computed only: {computed}), {skipped} skipped.",
    },
    "zh-CN": {
        "budget.short": "预算",
        "budget.title": "花掉漂移预算",
        "budget.lead": "从一步到下一步，模块加上的变化几乎相同。所以它可以跳过：把上次的变化再加一遍，"
        "并从预算中支付预期的漂移。预算不够付下一步时，模块就计算，账户归零。",
        "budget.task": "给模块更多或更少的预算。",
        "budget.block": "模块",
        "budget.tolerance": "复用容忍度：预算",
        "budget.ends_low": "谨慎：多计算",
        "budget.ends_high": "省：多跳过",
        "budget.saw": "模块 {block}：一步一步花了多少（灰色：跳过；▲：柱子超出图外）",
        "budget.saw_alt": "一个模块各步累积的漂移，预算为横线；跳过的步有阴影",
        "budget.curve": "所有模块：更多预算换来什么，又拿走什么",
        "budget.curve_alt": "跳过的占比与由预测决定的占比，随预算变化",
        "budget.spent": "已花费",
        "budget.drift": "一步的预期漂移",
        "budget.limit": "预算",
        "budget.skipped": "跳过",
        "budget.predictor": "由预测决定的层计算",
        "budget.axis_spent": "相对漂移",
        "budget.fact_skipped": "的模块步被跳过",
        "budget.fact_predictor": "的层计算由预测决定（不跳过时：{without}）",
        "budget.fact_bits": "比特（平均；只计计算部分：{computed}）",
        "budget.aha_none": "这样的预算下什么也没跳过：没有收益，只有检查的麻烦。",
        "budget.aha": "预算为 {budget} 时，{skipped} 的模块步被跳过。但跳过之后没有新鲜的 Γ 可供预测，"
        "模块为保险起见用 8 比特。上一课的预测现在决定 {share} 的层计算，不跳过时是 {without}。"
        "两个好主意在争夺同样的格子。",
        "budget.limit_note": "一个模块最多连续跳过 {limit} 步；最初 {first} 步和最后 {last} 步总是计算。",
        "budget.partial": "这次录制有些漂移从未观测到；规则需要它时，重放按计算处理。",
        "budget.measured": "以上数字由重放估算；录制的那次运行实测为：平均 {bits} 比特（只计计算部分：{computed}），跳过 {skipped}。",
    },
}
