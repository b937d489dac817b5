"""Lesson 1: a step is not a frame."""

TEXTS = {
    "en": {
        "average.short": "Steps and bits",
        "average.title": "A step is not a frame",
        "average.lead": "A video model does not draw one frame after another. It starts from noise and cleans the "
        "whole clip at once, again and again: {steps:once|# times} here. Each time the clip passes through {blocks:1 block|# blocks}.",
        "average.task": "Move through the steps. All frames sharpen together.",
        "average.step": "Denoising step",
        "average.film": "The whole clip, as the model guesses it at step {step} of {steps}",
        "average.frame": "frame {frame}",
        "average.map": "What each block (row) did at each step (column)",
        "average.bars": "How the arithmetic of each step was spent",
        "average.bars_alt": "Stacked bars: share of the arithmetic at 0, 4, 8 and 16 bits for each step",
        "average.map_alt": "Map of blocks and steps, coloured by precision; the chosen step is outlined",
        "average.fact_step": "bits on average in step {step}",
        "average.fact_blocks": "blocks reused their last change in this step",
        "average.fact_run": "bits on average over all steps",
        "average.fact_computed": "bits, counting only what was computed",
        "average.aha": "“{bits} bits” is not a number format. It is an average: {s0} of the arithmetic was skipped "
        "(0 bits), {s4} ran at 4 bits, {s8} at 8 and {s16} at 16. Counting only what was really computed, "
        "it is {computed} bits.",
        "average.no_film": "This recording holds no previews of its frames.",
        "average.axis_share": "share",
        "average.size_0": "0 bits: skipped",
        "average.size_4": "4 bits",
        "average.size_8": "8 bits",
        "average.size_16": "16 bits",
    },
    "zh-CN": {
        "average.short": "步与比特",
        "average.title": "一步不是一帧",
        "average.lead": "视频模型不是一帧接一帧地画。它从噪声开始，把整段视频一起变清晰，反复多次：这里是 {steps} 次。"
        "每一次，视频都要经过 {blocks} 个模块。",
        "average.task": "拖动步数。所有帧会一起变清晰。",
        "average.step": "去噪步",
        "average.film": "第 {step} 步（共 {steps} 步）时模型猜测的整段视频",
        "average.frame": "第 {frame} 帧",
        "average.map": "每个模块（行）在每一步（列）做了什么",
        "average.bars": "每一步的运算花在哪里",
        "average.bars_alt": "堆叠条形图：每一步在 0、4、8、16 比特上的运算占比",
        "average.map_alt": "模块与步的地图，按精度着色；所选的步有边框",
        "average.fact_step": "第 {step} 步的平均比特数",
        "average.fact_blocks": "个模块在这一步沿用了上次的变化",
        "average.fact_run": "所有步的平均比特数",
        "average.fact_computed": "只计真正计算过的部分的比特数",
        "average.aha": "“{bits} 比特”不是一种数字格式，而是一个平均值：{s0} 的运算被跳过（0 比特），{s4} 用 4 比特，"
        "{s8} 用 8 比特，{s16} 用 16 比特。只计真正计算过的部分，是 {computed} 比特。",
        "average.no_film": "这次录制没有保存各帧的预览。",
        "average.axis_share": "占比",
        "average.size_0": "0 比特：跳过",
        "average.size_4": "4 比特",
        "average.size_8": "8 比特",
        "average.size_16": "16 比特",
    },
}
