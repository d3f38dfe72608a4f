"""Option names of other libraries, and the options of hasten they correspond to."""

from __future__ import annotations

from collections.abc import Collection

#: key -> names elsewhere; of several keys the first that the model has is meant
OTHER_NAMES = {
    "model.max_length": "maxlen max_len max_seq_len max_seq_length max_sequence_length "
    "max_item_list_length session_max_len",
    "model.hidden": "hidden_dim hidden_size hidden_channels",
    "model.width": "embedding_dim embedding_size emb_dim emb_size embed_dim embed_size hidden_dim "
    "hidden_units hidden_size dim dim_e d_model latent_dim factors n_factors",
    "model.blocks": "num_blocks n_blocks n_layers num_layers",
    "model.layers": "n_layers num_layers n_ui_layers gcn_layers layer_size num_hgt_layers",
    "model.heads": "num_heads n_heads nhead attn_heads",
    "model.dropout": "dropout_rate dropout_prob drop_rate hidden_dropout_prob attn_dropout_prob "
    "mess_dropout",
    "model.embedding_l2": "l2_emb",
    "model.l2": "l2_emb l2_reg reg regs reg_weight regularization",
    "model.negatives": "num_negs n_negs num_negative neg_ratio num_negs_per_pos "
    "train_neg_sample_num negative_sample_size",
    "model.loss": "loss_type loss_function",
    "model.channels": "output_channels num_filters",
    "model.margin": "gamma",
    "model.temperature": "adversarial_temperature",
    "model.kg_batch_size": "batch_size_kg kg_batch",
    "training.weight_decay": "l2_emb wd l2_reg",
    "training.lr": "learning_rate lrate",
    "training.epochs": "n_epochs num_epochs n_epoch num_epoch epoch max_epochs train_epochs",
    "training.batch_size_per_device": "batch_size_per_gpu per_device_train_batch_size",
    "training.batch_size": "train_batch_size batch_size_train batchsize bs",
    "training.optimizer": "learner optim",
    "training.accumulate": "accumulation_steps gradient_accumulation_steps "
    "accumulate_grad_batches grad_accum",
    "training.recompute": "use_gradient_checkpointing gradient_checkpointing",
    "training.clip_norm": "clip_grad_norm max_grad_norm grad_clip gradient_clip_val",
    "training.schedule": "scheduler lr_scheduler lr_scheduler_type",
    "training.patience": "stopping_step early_stop early_stopping early_stopping_patience",
    "training.compile": "torch_compile use_compile enable_compile",
    "evaluation.every": "eval_step eval_interval valid_step valid_interval eval_freq",
    "evaluation.metrics": "valid_metric eval_metric",
    "topk": "k ks topks",
    "device": "gpu gpu_id use_gpu cuda no_cuda",
    "devices": "num_gpus n_gpu n_gpus nproc world_size",
    "seed": "random_seed random_state manual_seed",
    "out": "output output_dir out_dir logdir log_dir save_dir checkpoint_dir train_dir",
    "init_from": "state_dict_path model_path pretrained pretrain_path load_path",
    "data.path": "dataset data_path data_dir dataset_path",
    "data.train": "train train_path train_file",
    "data.entities": "entity_to_id",
    "data.relations": "relation_to_id",
    "data.k_core": "user_inter_num_interval item_inter_num_interval min_interactions",
}
#: names of other libraries' options that hasten lacks -> what to do instead
ADVICE = dict.fromkeys(
    ("num_workers", "n_workers", "workers"),
    "batches are made in the training process, without workers; leave it out",
) | dict.fromkeys(
    ("eval_batch_size", "test_batch_size", "batch_size_test", "batch_size_eval"),
    "evaluation always ranks tiles of 256 queries, halved if memory runs out; leave it out",
) | dict.fromkeys(
    ("use_amp", "amp", "enable_amp", "fp16", "bf16", "use_mixed_precision", "mixed_precision"),
    "mixed precision is --precision auto, bf16 or fp16 (training.precision)",
) | dict.fromkeys(
    ("tf32", "allow_tf32", "float32_matmul_precision", "matmul_precision"),
    "TF32 products on NVIDIA GPUs are --set training.matmul=tf32, the default, or highest",
) | dict.fromkeys(
    ("nproc_per_node", "multi_gpu"), "--devices N starts the processes; or use torchrun"
) | {
    "use_mhc": "hyper-connections are --set model.residual=mhc",
    "no_mhc": "plain residuals are the default: --set model.residual=plain",
    "inference_only": "use hasten evaluate RUN or hasten recommend RUN",
    "no_time": "train sasrec, which reads no times, instead of tisasrec",
    "disable_memory_cleanup": "memory cleanup is off unless training.cleanup_every is set",
}  # fmt: skip


def normalized_name(name: str) -> str:
    """The last part of a key or of an option, in one spelling."""
    return name.rpartition(".")[2].lstrip("-").replace("-", "_").lower()


def hasten_key(name: str, keys: Collection[str]) -> str | None:
    """The key that another library's name stands for, among the keys of the model."""
    word = normalized_name(name)
    return next(
        (k for k, words in OTHER_NAMES.items() if k in keys and word in words.split()), None
    )
