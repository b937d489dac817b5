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
TEXT_WIDTH = 128
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


def build_text_encoder() -> T5EncoderModel:
    """Three small T5 layers: the relative position bias binds each adjective to its noun."""
    return T5EncoderModel(T5Config(
        vocab_size=len(V.WORDS), d_model=TEXT_WIDTH, d_kv=32, num_heads=4, d_ff=384, num_layers=3,
        relative_attention_num_buckets=32, relative_attention_max_distance=64, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
        tie_word_embeddings=False))


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
