"""The last page: your turn."""

TEXTS = {
    "en": {
        "turn.short": "Your turn",
        "turn.title": "Under 5 bits, every tick right",
        "turn.lead": "Now you know the whole machine, and three numbers steer it. Two are here; the third, the outlier limit, we leave at its default. Find a setting below "
        "5 bits on average. Then let the Lab run it: are all the ticks under the video still right?",
        "turn.task": "Move both until the average is below 5.",
        "turn.precision": "4-bit tolerance",
        "turn.reuse": "Reuse tolerance",
        "turn.cheaper": "cheaper, riskier",
        "turn.careful": "careful",
        "turn.map": "The map at this setting",
        "turn.map_alt": "Map of blocks and steps at the chosen setting, coloured by precision",
        "turn.fact_bits": "bits on average",
        "turn.fact_computed": "bits, computed only",
        "turn.fact_skipped": "of block steps skipped",
        "turn.over": "{bits} bits: not there yet.",
        "turn.under": "{bits} bits: below 5. Now run it in the Lab and look at the ticks.",
        "turn.honest": "Mind the second number: skipping counts as 0 bits, so the average falls by skipping alone. "
        "What is computed still takes {computed} bits.",
        "turn.measured": "Of {count:1 measured setting|# measured settings} below 5 bits, the best kept {best} of all ticks right; "
        "untouched FP16 reaches {reference}.",
        "turn.run": "Run this setting in the Lab",
    },
    "zh-CN": {
        "turn.short": "轮到你了",
        "turn.title": "低于 5 比特，每个勾都对",
        "turn.lead": "现在你了解了整台机器，有三个数在操纵它。这里是其中两个；第三个是离群值阈值，我们保留它的默认值。找一个平均低于 5 比特的设置，"
        "再让实验室运行它：视频下面的勾还都对吗？",
        "turn.task": "移动两者，直到平均值低于 5。",
        "turn.precision": "4 比特容忍度",
        "turn.reuse": "复用容忍度",
        "turn.cheaper": "更省，更冒险",
        "turn.careful": "谨慎",
        "turn.map": "这个设置下的决策图",
        "turn.map_alt": "所选设置下模块与步的地图，按精度着色",
        "turn.fact_bits": "比特（平均）",
        "turn.fact_computed": "比特（只计计算部分）",
        "turn.fact_skipped": "的模块步被跳过",
        "turn.over": "{bits} 比特：还没到。",
        "turn.under": "{bits} 比特：低于 5 比特。现在到实验室运行它，看看那些勾。",
        "turn.honest": "留意第二个数：跳过按 0 比特计，所以光靠跳过平均值就会下降。真正计算的部分仍用 {computed} 比特。",
        "turn.measured": "在 {count} 个实测低于 5 比特的设置中，最好的保住了 {best} 的勾；未改动的 FP16 为 {reference}。",
        "turn.run": "在实验室运行这个设置",
    },
}
