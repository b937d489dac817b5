"""Lesson 3: who needs rotation?"""

TEXTS = {
    "en": {
        "rotation.short": "Rotation",
        "rotation.title": "Who needs rotation?",
        "rotation.lead": "A Hadamard transform adds and subtracts neighbouring numbers in all patterns. It loses "
        "nothing and can be undone exactly, but it spreads one large number evenly over {width}. The engine rotates "
        "before it rounds.",
        "rotation.task": "Switch the rotation on and off.",
        "rotation.switch": "Rotation",
        "rotation.off": "Off",
        "rotation.on": "On",
        "rotation.layer": "Layer",
        "rotation.values": "{width} numbers of one token",
        "rotation.values_alt": "Bars of the numbers of one token, rotation {state}",
        "rotation.errors": "Error of every layer: hollow = plain, filled = rotated",
        "rotation.errors_alt": "Error of each layer in INT8 and NVFP4, without and with rotation",
        "rotation.axis_error": "error of the rounded numbers",
        "rotation.fact_ratio": "largest over average in this token",
        "rotation.fact_int8": "error in INT8, mean of this layer",
        "rotation.fact_nvfp4": "error in NVFP4, mean of this layer",
        "rotation.aha_off": "Plain, this layer's numbers lose {int8} in INT8 and {nvfp4} in NVFP4. "
        "Switch the rotation on and watch which of the two moves.",
        "rotation.int8_gain": "INT8 gains: its error falls from {before} to {after}, {times} times smaller, "
        "because its one ruler no longer has to reach for the outlier.",
        "rotation.int8_same": "INT8 hardly changes here ({before} → {after}): this layer has no outlier worth spreading.",
        "rotation.int8_worse": "INT8 even loses a little here ({before} → {after}): there was no outlier to spread.",
        "rotation.nvfp4_gain": "NVFP4 gains too: {before} → {after}.",
        "rotation.nvfp4_same": "NVFP4 hardly changes ({before} → {after}): its short rulers had already locked the "
        "outlier in with 15 neighbours.",
        "rotation.nvfp4_worse": "NVFP4 even gets worse ({before} → {after}): its short rulers had already locked the "
        "outlier in with 15 neighbours, and now everyone gets a share.",
        "rotation.all": "Over all layers the error shrinks by a factor of {int8} in INT8 and {nvfp4} in NVFP4 (below 1 it grows).",
        "rotation.note_measured": "Errors of whole layers (the product, activations rounded alone), mean over "
        "{count:1 measurement|# measurements} of this layer in a real run. The bars above show one token.",
        "rotation.note": "Error of the activations alone, mean over {count:1 token|# tokens} of this layer.",
    },
    "zh-CN": {
        "rotation.short": "旋转",
        "rotation.title": "谁需要旋转？",
        "rotation.lead": "Hadamard 变换把相邻的数按各种组合相加相减。它不丢失任何信息，可以精确还原，"
        "却能把一个很大的数均匀摊到 {width} 个数上。引擎先旋转，再取整。",
        "rotation.task": "打开、关闭旋转。",
        "rotation.switch": "旋转",
        "rotation.off": "关",
        "rotation.on": "开",
        "rotation.layer": "层",
        "rotation.values": "一个 token 的 {width} 个数",
        "rotation.values_alt": "一个 token 数值的条形图，旋转：{state}",
        "rotation.errors": "各层的误差：空心 = 不旋转，实心 = 旋转",
        "rotation.errors_alt": "各层在 INT8 和 NVFP4 下不旋转与旋转时的误差",
        "rotation.axis_error": "取整后的误差",
        "rotation.fact_ratio": "这个 token 的最大值与平均值之比",
        "rotation.fact_int8": "INT8 的误差，本层平均",
        "rotation.fact_nvfp4": "NVFP4 的误差，本层平均",
        "rotation.aha_off": "不旋转时，这一层的数在 INT8 中误差 {int8}，在 NVFP4 中误差 {nvfp4}。"
        "打开旋转，看看两者中哪一个会动。",
        "rotation.int8_gain": "INT8 受益：误差从 {before} 降到 {after}，只有原来的 1/{times}，因为它唯一的尺不必再去够离群值。",
        "rotation.int8_same": "INT8 在这里几乎不变（{before} → {after}）：这一层没有值得摊开的离群值。",
        "rotation.int8_worse": "INT8 在这里反而略差（{before} → {after}）：本来就没有离群值可摊。",
        "rotation.nvfp4_gain": "NVFP4 也受益：{before} → {after}。",
        "rotation.nvfp4_same": "NVFP4 几乎不变（{before} → {after}）：它的短尺早已把离群值和 15 个邻居关在一起。",
        "rotation.nvfp4_worse": "NVFP4 反而变差（{before} → {after}）：它的短尺早已把离群值和 15 个邻居关在一起，"
        "现在人人都分到一份。",
        "rotation.all": "所有层合计，误差缩小的倍数：INT8 {int8}，NVFP4 {nvfp4}（小于 1 表示变大）。",
        "rotation.note_measured": "整层的误差（乘积，仅激活取整），为一次真实运行中本层 {count} 次测量的平均。上面的柱子是一个 token。",
        "rotation.note": "仅激活值的误差，为本层 {count} 个 token 的平均。",
    },
}
