"""The five parts of the embedded pipeline, untrained: their shapes are decided here and nowhere else."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLCogVideoX, CogVideoXDDIMScheduler, CogVideoXTransformer3DModel
from diffusers.models.embeddings import get_3d_rotary_pos_embed
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from engine import vocabulary as V

LATENT_CHANNELS = 16
LATENT_FRAMES = (V.FRAMES - 1) // 4 + 1
LATENT_SIZE = V.SIZE // 8
TEXT_WIDTH, TEXT_LAYERS = 128, 4
STOCK_TEXT_LENGTH = 226            # what a plain pipe(prompt) call pads to: the model must serve it too


def build_vae() -> AutoencoderKLCogVideoX:
    """17x128x128 video to 5x16x16 latents of 16 channels. Few channels at full size, where a CPU's time goes."""
    return AutoencoderKLCogVideoX(
        block_out_channels=(16, 32, 64, 96), layers_per_block=1, latent_channels=LATENT_CHANNELS,
        down_block_types=("CogVideoXDownBlock3D",) * 4, up_block_types=("CogVideoXUpBlock3D",) * 4,
        norm_num_groups=8, sample_height=V.SIZE, sample_width=V.SIZE, temporal_compression_ratio=4,
        scaling_factor=1.0)


def build_transformer() -> CogVideoXTransformer3DModel:
    """12 blocks of width 256: 14 M parameters."""
    return CogVideoXTransformer3DModel(
        num_attention_heads=4, attention_head_dim=64, in_channels=LATENT_CHANNELS, out_channels=LATENT_CHANNELS,
        time_embed_dim=128, text_embed_dim=TEXT_WIDTH, num_layers=12, sample_width=LATENT_SIZE,
        sample_height=LATENT_SIZE, sample_frames=V.FRAMES, max_text_seq_length=V.MAX_WORDS, patch_size=2,
        temporal_compression_ratio=4, use_rotary_positional_embeddings=True)


def build_text_encoder(width: int = TEXT_WIDTH, layers: int = TEXT_LAYERS, heads: int = 4, inner: int = 384,
                       d_kv: int = 32) -> T5EncoderModel:
    """Four small T5 layers, 0.86 M parameters: the relative position bias tells the sides of "and" apart (layer one),
    the later layers gather what stands on the same side."""
    return T5EncoderModel(T5Config(
        vocab_size=len(V.WORDS), d_model=width, d_kv=d_kv, num_heads=heads, d_ff=inner, num_layers=layers,
        relative_attention_num_buckets=32, relative_attention_max_distance=64, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
        tie_word_embeddings=False))


@torch.no_grad()
def point_heads(encoder: T5EncoderModel) -> None:
    """Give a new encoder's four heads a direction to look: two near, one to the left, one to the right. Which side of
    "and" a word stands on can then be read at once; training is free to change it."""
    attention = encoder.encoder.block[0].layer[0].SelfAttention
    apart = torch.arange(-60, 61)
    bucket = attention._relative_position_bucket(apart, bidirectional=True, num_buckets=32, max_distance=64)
    for k in bucket.unique().tolist():
        far, side = apart[bucket == k].abs().float().mean().item(), apart[bucket == k].sign()[0].item()
        attention.relative_attention_bias.weight[k] = torch.tensor(
            [-0.4 * far, -0.4 * far, -6.0 * (side > 0), -6.0 * (side < 0)])


def text_encoder_of(weights: dict[str, torch.Tensor]) -> T5EncoderModel:
    """The encoder that trained weights belong to, whatever its size was, with those weights."""
    query = weights["encoder.block.0.layer.0.SelfAttention.q.weight"]
    heads = weights["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"].shape[1]
    layers = 1 + max(int(n.split(".")[2]) for n in weights if n.startswith("encoder.block."))
    encoder = build_text_encoder(query.shape[1], layers, heads,
                                 weights["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"].shape[0],
                                 query.shape[0] // heads)
    encoder.load_state_dict({"encoder.embed_tokens.weight": weights["shared.weight"]} | weights)
    return encoder


def grown_text_encoder(weights: dict[str, torch.Tensor] | None) -> tuple[T5EncoderModel, bool]:
    """Today's encoder on top of older weights, and whether they fitted. Layers that the weights lack begin as the
    identity, so that the output is at first what it was; weights of another width are not used."""
    encoder = build_text_encoder()
    if weights is None:
        return encoder, False
    state = encoder.state_dict()
    kept = {n: w for n, w in weights.items() if n in state and state[n].shape == w.shape}
    if len(kept) < len(weights):
        return encoder, False
    encoder.load_state_dict({"encoder.embed_tokens.weight": weights["shared.weight"]} | kept, strict=False)
    for i, block in enumerate(encoder.encoder.block):
        if f"encoder.block.{i}.layer.0.SelfAttention.o.weight" not in kept:
            torch.nn.init.zeros_(block.layer[0].SelfAttention.o.weight)
            torch.nn.init.zeros_(block.layer[1].DenseReluDense.wo.weight)
    return encoder, True


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; punctuation and case are dropped as engine.vocabulary.words_of does."""
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(V.WORDS)}, unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex(r'[.,;:!?"]'), " ")])
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
                                   model_max_length=V.MAX_WORDS)


def build_scheduler() -> CogVideoXDDIMScheduler:
    """CogVideoX-5B's own schedule: v-prediction, zero terminal SNR, trailing steps."""
    return CogVideoXDDIMScheduler(
        num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
        prediction_type="v_prediction", rescale_betas_zero_snr=True, snr_shift_scale=1.0,
        timestep_spacing="trailing", clip_sample=False, set_alpha_to_one=True)


def rotary(device) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotary embedding that the stock pipeline computes for 17 frames of 128x128."""
    side = LATENT_SIZE // 2
    return get_3d_rotary_pos_embed(embed_dim=64, crops_coords=((0, 0), (side, side)), grid_size=(side, side),
                                   temporal_size=LATENT_FRAMES, device=torch.device(device))
