"""Lesson 2: sixteen numbers, one ruler."""

TEXTS = {
    "en": {
        "ruler.short": "One ruler",
        "ruler.title": "Sixteen numbers, one ruler",
        "ruler.lead": "Few bits means a ruler with few marks: every number snaps to the nearest one. NVFP4 lays a "
        "ruler of its own over every 16 numbers, with 15 marks. INT8 lays one ruler over the whole token, here "
        "{width} numbers, with 255 marks.",
        "ruler.task": "Drag the orange dot upwards, past the top of the picture.",
        "ruler.hint": "Touch: tap a bar, then drag its dot. Keyboard: Tab to the dot, ↑ ↓ change it, ← → choose "
        "another, Esc puts it back.",
        "ruler.figure": "Grey: the real numbers. Coloured marks: what is stored. Lines: the ruler.",
        "ruler.alt": "Sixteen numbers of a real block with the rulers of NVFP4 and INT8",
        "ruler.handle": "The dragged number",
        "ruler.nvfp4": "NVFP4: 15 marks for these 16",
        "ruler.int8": "INT8: 255 marks for all {width}",
        "ruler.sentence": "Error of the 15 neighbours: {near0} → <b>{near1}</b>. Of the other {others:group|# groups}: "
        "{far0} → <b>{far1}</b>.",
        "ruler.strip": "Boxes: the whole token, 16 numbers each; the redder, the more wrong.",
        "ruler.fact_ratio": "largest over average in this token (recorded: {before})",
        "ruler.fact_near": "error of the 15 neighbours in NVFP4",
        "ruler.fact_far": "error of everything else in INT8",
        "ruler.aha_calm": "Both rulers fit these numbers. Now make one of them much larger than the rest.",
        "ruler.aha_block": "The ruler of these 16 had to stretch, so its marks moved apart: the 15 neighbours went from "
        "{near0} to {near1} error. All other groups have rulers of their own. INT8 did not stretch: a larger number "
        "elsewhere in the token had already set its ruler.",
        "ruler.aha_token": "An outlier costs its neighbours, and what counts as a neighbour is the format's choice. In "
        "NVFP4 the 15 beside it went from {near0} to {near1} error, the rest of the token stayed at {far4}. In INT8 "
        "the whole token pays: {far0} → {far1}.",
        "ruler.aha_gone": "By now all 15 neighbours in NVFP4 are rounded to zero.",
    },
    "zh-CN": {
        "ruler.short": "一把尺",
        "ruler.title": "十六个数，一把尺",
        "ruler.lead": "比特数少，就是尺上的刻度少：每个数都要贴到最近的刻度上。NVFP4 给每 16 个数一把自己的尺，有 15 个刻度。"
        "INT8 给整个 token（这里 {width} 个数）一把尺，有 255 个刻度。",
        "ruler.task": "把橙色圆点向上拖，拖过图的顶端。",
        "ruler.hint": "触屏：先点一根柱，再拖它的圆点。键盘：Tab 到圆点，↑ ↓ 改变它，← → 换一个，Esc 复原。",
        "ruler.figure": "灰色：真实数值。彩色短线：存下来的值。横线：尺的刻度。",
        "ruler.alt": "一个真实块的十六个数，以及 NVFP4 和 INT8 的尺",
        "ruler.handle": "被拖动的数",
        "ruler.nvfp4": "NVFP4：这 16 个数有 15 个刻度",
        "ruler.int8": "INT8：全部 {width} 个数共用 255 个刻度",
        "ruler.sentence": "15 个邻居的误差：{near0} → <b>{near1}</b>。其余 {others} 组：{far0} → <b>{far1}</b>。",
        "ruler.strip": "方格：整个 token，每格 16 个数；越红误差越大。",
        "ruler.fact_ratio": "这个 token 的最大值与平均值之比（录制时：{before}）",
        "ruler.fact_near": "NVFP4 中 15 个邻居的误差",
        "ruler.fact_far": "INT8 中其余所有数的误差",
        "ruler.aha_calm": "两把尺都适合这些数。现在让其中一个远大于其他。",
        "ruler.aha_block": "这 16 个数的尺不得不拉长，刻度变稀：15 个邻居的误差从 {near0} 变为 {near1}。其他各组有自己的尺。"
        "INT8 没有拉长：token 里别处更大的数早已决定了它的尺。",
        "ruler.aha_token": "离群值要邻居付账，而谁算邻居由格式决定。在 NVFP4 中，身边 15 个数的误差从 {near0} 变为 {near1}，"
        "token 的其余部分仍是 {far4}。在 INT8 中，整个 token 一起付账：{far0} → {far1}。",
        "ruler.aha_gone": "到这一步，NVFP4 里的 15 个邻居全部被取整为零。",
    },
}
