"""Policies that weigh predicted errors by how much each layer matters: the preset, the setting, what a cell says then."""

TEXTS = {
    "en": {
        "lab.preset.dmpq_sensitive": "DMPQ, weighed",
        "lab.preset.dmpq_sensitive.what": "4-bit weights, 4 or 8 bits by forecast, weighed by how much each layer matters to the result (ours); nothing skipped.",
        "lab.field.weighting": "Forecasts count",
        "lab.field.weighting.what": "Alike as in the paper, or by how much each layer matters: ours.",
        "lab.option.weigh.none": "alike",
        "lab.option.weigh.sensitivity": "by layer",
        "lab.says.error_weighed": "4 bits where the predicted error, weighed by how much the layer matters, is below this. Decides {decided} of {total} layer calls, {four} of them 4-bit; the rest are skipped or set by rule.",
        "lab.view.verdict.weighed": "Each choice between 4 and 8 bits, against the error that was really measured, weighed by how much the layer matters.",
        "lab.why.weighed.predicted_error_above_threshold": "4 bits would cost an error of {predicted}, predicted; weighed {weight} for how much the layer matters it counts {weighed}, above the 4-bit tolerance of {tau}",
        "lab.why.weighed.predicted_error_within_threshold": "the predicted error of {predicted}, weighed {weight} for how much the layer matters, counts {weighed}, within the 4-bit tolerance of {tau}",
        "lab.value.weighed": "predicted {value}, weighed {weight} for how much the layer matters = {weighed}",
    },
    "zh-CN": {
        "lab.preset.dmpq_sensitive": "DMPQ（加权）",
        "lab.preset.dmpq_sensitive.what": "4 比特权重，按预测用 4 或 8 比特，预测按各层对结果的重要程度加权（我们的扩展）；不跳过。",
        "lab.field.weighting": "预测误差",
        "lab.field.weighting.what": "论文一视同仁；按各层的重要程度加权是我们的扩展。",
        "lab.option.weigh.none": "一视同仁",
        "lab.option.weigh.sensitivity": "按层加权",
        "lab.says.error_weighed": "按层的重要程度加权后的预测误差低于此值处用 4 比特。{total} 次层计算中由它决定 {decided} 次，其中 {four} 次为 4 比特；其余被跳过或由规则指定。",
        "lab.view.verdict.weighed": "4 与 8 比特之间的每次选择，对照真实测得、并按层的重要程度加权的误差。",
        "lab.why.weighed.predicted_error_above_threshold": "若用 4 比特，预测误差为 {predicted}，按层的重要程度加权（{weight}）后计为 {weighed}，超过 4 比特容忍度 {tau}",
        "lab.why.weighed.predicted_error_within_threshold": "预测误差为 {predicted}，按层的重要程度加权（{weight}）后计为 {weighed}，在 4 比特容忍度 {tau} 之内",
        "lab.value.weighed": "预测 {value}，按层的重要程度加权（{weight}）= {weighed}",
    },
}
