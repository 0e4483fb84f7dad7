//! The names and values of other toolkits, in tables.

/// Our key (dotted) and the names that others have for it, in any section. A name in several rows means any of their
/// keys. A test compares the table of docs/guide/migrating.md.
pub(super) const KEYS: &[(&str, &[&str])] = &[
    (
        "data.train",
        &[
            "train_sets",
            "train_data",
            "trainpref",
            "source",
            "target",
            "data",
            "corpus_1",
            "tsv",
            "dataset_type",
            "data_weighting",
        ],
    ),
    ("data.valid", &["dev", "valid_sets", "valid_data", "validpref", "validation_source", "validation_target", "data"]),
    (
        "data.max_length",
        &[
            "max_sent_length",
            "max_seq_len",
            "src_seq_length",
            "tgt_seq_length",
            "max_source_positions",
            "max_target_positions",
        ],
    ),
    (
        "tokenizer.path",
        &[
            "spm",
            "sentencepiece",
            "sentencepiece_model",
            "bpe",
            "tokenizer_cfg",
            "model_file",
            "src_subword_model",
            "vocab",
            "vocabs",
            "src_vocab",
            "source_vocab",
        ],
    ),
    ("tokenizer.joint", &["vocabs"]),
    ("tokenizer.dropout", &["bpe_dropout", "sentencepiece_alphas", "src_subword_alpha", "tgt_subword_alpha"]),
    (
        "tokenizer.sampling.alpha",
        &["sentencepiece_alphas", "subword_alpha", "src_subword_alpha", "tgt_subword_alpha", "sampling_alpha"],
    ),
    ("tokenizer.sampling.nbest", &["src_subword_nbest", "tgt_subword_nbest", "nbest_size"]),
    ("tokenizer.codes", &["bpe_codes", "bpe_codes_path"]),
    ("tokenizer.vocabulary_threshold", &["threshold"]),
    ("tokenizer.target_path", &["tgt_vocab", "trg_vocab", "target_vocab", "tgt_subword_model"]),
    (
        "tokenizer.vocab_size",
        &[
            "bpe_size",
            "bpe_operations",
            "num_merges",
            "vocab_limit",
            "voc_limit",
            "dim_vocabs",
            "nwordssrc",
            "nwordstgt",
            "num_words",
            "src_vocab_size",
            "tgt_vocab_size",
            "learn_subwords_size",
            "vocab",
        ],
    ),
    ("model.preset", &["arch", "architecture", "type", "model_type", "task"]),
    (
        "model.d_model",
        &[
            "dim_emb",
            "embed_dim",
            "embedding_dim",
            "embedding_size",
            "encoder_embed_dim",
            "decoder_embed_dim",
            "hidden_size",
            "rnn_size",
            "model_size",
            "transformer_model_size",
            "word_vec_size",
        ],
    ),
    (
        "model.d_ff",
        &[
            "dim_ff",
            "ffn_dim",
            "encoder_ffn_embed_dim",
            "decoder_ffn_embed_dim",
            "transformer_ff",
            "transformer_dim_ffn",
            "ff_size",
            "feed_forward_num_hidden",
            "transformer_feed_forward_num_hidden",
        ],
    ),
    (
        "model.heads",
        &[
            "attention_heads",
            "encoder_attention_heads",
            "decoder_attention_heads",
            "transformer_heads",
            "transformer_attention_heads",
            "num_heads",
            "h",
        ],
    ),
    ("model.encoder_layers", &["enc_layers", "enc_depth", "num_encoder_layers", "layers", "num_layers", "n"]),
    ("model.decoder_layers", &["dec_layers", "dec_depth", "num_decoder_layers", "layers", "num_layers", "n"]),
    ("model.norm", &["layer_norm", "transformer_preprocess", "transformer_postprocess"]),
    ("model.tie", &["weight_tying", "weight_tying_type"]),
    ("tokenizer.symbols", &["user_defined_symbols"]),
    ("model.positions", &["transformer_positional_embedding_type", "max_relative_positions"]),
    (
        "model.activation",
        &["activation_fn", "pos_ffn_activation_fn", "transformer_ffn_activation", "transformer_activation_type"],
    ),
    ("model.dropout", &["transformer_dropout", "transformer_dropout_prepost", "hidden_dropout", "p_drop"]),
    ("model.embedding_dropout", &["emb_dropout", "embed_dropout"]),
    ("model.attention_dropout", &["transformer_dropout_attention"]),
    ("model.activation_dropout", &["relu_dropout", "transformer_dropout_ffn", "transformer_dropout_act"]),
    ("model.max_length", &["max_source_positions", "max_target_positions"]),
    (
        "train.init",
        &[
            "pretrained_model",
            "load_model",
            "restore_file",
            "finetune_from_model",
            "train_from",
            "load_params",
            "params",
        ],
    ),
    (
        "train.freeze",
        &[
            "embedding_fix_src",
            "embedding_fix_trg",
            "fixed_param_names",
            "fixed_param_strategy",
            "freeze_word_vecs_enc",
            "freeze_word_vecs_dec",
        ],
    ),
    ("train.low_rank.rank", &["lora_rank", "lora_r", "r"]),
    ("train.low_rank.alpha", &["lora_alpha"]),
    ("train.low_rank.projections", &["lora_layers", "target_modules"]),
    ("train.low_rank.also", &["modules_to_save"]),
    ("train.batch_tokens", &["max_tokens", "max_tokens_per_batch", "mini_batch", "mini_batch_words", "batch_size"]),
    (
        "train.accumulate",
        &["update_freq", "optimizer_delay", "batch_multiplier", "accum_count", "update_interval", "grad_accumulation"],
    ),
    ("train.label_smoothing", &["epsilon_ls", "eps_ls"]),
    ("train.r_drop", &["reg_alpha", "rdrop", "rdrop_alpha", "rdrop_coef"]),
    ("train.max_updates", &["max_update", "max_steps", "train_steps", "after_batches", "updates", "after"]),
    ("train.max_epochs", &["max_epoch", "max_num_epochs", "epochs", "after_epochs", "after"]),
    ("train.clip_norm", &["clip", "max_grad_norm", "clip_grad_norm", "gradient_clipping_threshold"]),
    ("train.exponential_average", &["ema", "ema_decay", "moving_average_decay"]),
    (
        "train.save_every",
        &[
            "save_interval",
            "save_interval_updates",
            "save_freq",
            "save_checkpoint_steps",
            "checkpoint_interval",
            "validation_freq",
        ],
    ),
    (
        "train.keep",
        &[
            "keep_interval_updates",
            "keep_last_ckpts",
            "keep_last_epochs",
            "keep_last_params",
            "keep_checkpoint",
            "keep_checkpoints",
        ],
    ),
    ("train.keep_best", &["keep_best_ckpts", "keep_best_checkpoints", "cache_last_best_params"]),
    ("train.log_every", &["log_interval", "logging_freq", "disp_freq", "report_every"]),
    ("train.seed", &["seed", "random_seed"]),
    (
        "train.schedule",
        &["lr_scheduler", "scheduling", "learning_rate_scheduler_type", "decay_method", "lr_decay_inv_sqrt"],
    ),
    ("train.schedule.warmup", &["warmup_updates", "warmup_steps", "learning_rate_warmup", "lr_warmup"]),
    ("train.schedule.learning_rate", &["lr", "learning_rate", "learn_rate", "initial_learning_rate"]),
    ("train.optimizer.betas", &["adam_betas", "adam_beta1", "adam_beta2", "optimizer_betas", "optimizer_params"]),
    ("train.optimizer.weight_decay", &["optimizer_params"]),
    ("train.optimizer.eps", &["adam_eps", "adam_epsilon"]),
    (
        "valid.every",
        &[
            "validate_interval",
            "validate_interval_updates",
            "validation_freq",
            "valid_freq",
            "valid_steps",
            "checkpoint_interval",
            "eval_every",
        ],
    ),
    ("valid.patience", &["early_stopping", "early_stopping_patience", "max_num_checkpoint_not_improved"]),
    ("valid.patience_after", &["min_updates", "min_num_updates", "min_num_epochs"]),
    (
        "valid.metric",
        &[
            "valid_metrics",
            "eval_metric",
            "optimized_metric",
            "early_stopping_metric",
            "early_stopping_criteria",
            "best_checkpoint_metric",
        ],
    ),
    ("decode.beam", &["beam_size"]),
    ("valid.beam", &["beam_size"]),
    ("decode.length_penalty", &["normalize", "lenpen", "length_penalty_alpha", "alpha", "beam_alpha"]),
    ("decode.length_penalty_kind", &["length_penalty_type"]),
    ("decode.no_repeat_ngram", &["no_repeat_ngram_size", "block_ngram_repeat"]),
    ("decode.max_length_ratio", &["max_len_a", "max_length_factor"]),
    ("decode.max_length_extra", &["max_len_b"]),
    ("runtime.device", &["gpu", "device_id"]),
    ("runtime.threads", &["cpu_threads", "num_threads"]),
    ("runtime.precision", &["model_dtype", "dtype"]),
];

/// Like [`KEYS`], with our value, for switches of other toolkits and for what they count differently.
pub(super) const SETTINGS: &[(&str, &str, &[&str])] = &[
    ("tokenizer.joint", "true", &["joined_dictionary", "shared_vocab", "share_vocab"]),
    ("model.tie", "\"all\"", &["share_all_embeddings", "tied_embeddings_all", "share_embeddings"]),
    (
        "model.tie",
        "\"decoder\"",
        &["share_decoder_input_output_embed", "share_decoder_embeddings", "tied_embeddings", "tied_softmax"],
    ),
    ("model.norm", "\"pre\"", &["encoder_normalize_before", "decoder_normalize_before"]),
    (
        "model.positions",
        "\"learned\"",
        &["encoder_learned_pos", "decoder_learned_pos", "transformer_train_position_embeddings"],
    ),
    ("train.freeze", "[\"encoder\"]", &["freeze_encoder"]),
    ("train.freeze", "[\"decoder\"]", &["freeze_decoder"]),
    ("train.exponential_average", "0.9999", &["store_ema"]),
    ("train.exponential_average", "0.9999", SMOOTHING),
    ("runtime.device", "\"cuda\"", &["use_cuda"]),
    ("runtime.device", "\"cpu\"", &["cpu", "use_cpu"]),
    ("runtime.precision", "\"bf16\"", &["fp16", "bf16", "amp", "apex_amp", "mixed_precision"]),
];

/// Names of Marian and OpenNMT for one minus `train.exponential_average`.
pub(super) const SMOOTHING: &[&str] = &["exponential_smoothing", "average_decay"];

/// What to add for names that others count or mean differently: our key, others' names.
pub(super) const NOTES: &[(&str, &[&str], &str)] = &[
    ("batch_tokens", &["batch_size", "max_sentences", "mini_batch"], ", in tokens"),
    ("length_penalty", &["lenpen", "normalize"], " with `length_penalty_kind = \"power\"`"),
    ("train", &["source", "target"], " (a list of `{ source = \"FILE\", target = \"FILE\" }`)"),
    ("train", &["tsv"], " (a list of `{ tsv = \"FILE\", source = 1, target = 2 }`)"),
    ("train", &["data_weighting"], " (whose entries may have `weights`)"),
    ("train", &["dataset_type"], " (whose entries are two files, `tsv` or `hub`)"),
    ("dropout", &["sentencepiece_alphas", "src_subword_alpha", "tgt_subword_alpha"], " (for BPE)"),
    ("alpha", &["sentencepiece_alphas", "src_subword_alpha", "tgt_subword_alpha"], " (for a unigram model)"),
    ("nbest", &["nbest_size"], " (for a list of translations, `mt translate --n-best N`)"),
    ("init", &["load_model", "restore_file", "train_from"], " (a run goes on with `mt train --resume`)"),
    ("max_length_extra", &["max_len_b"], " (for a fixed limit, `mt translate --max-length N`)"),
];

/// Names of other toolkits for what is no key here, and what to use instead.
pub(super) const NO_KEY: &[(&[&str], &str)] = &[
    (
        &["save_dir", "model_dir", "output_dir", "save_model", "output", "output_model", "model_path"],
        "the run's directory is given on the command line: `--run-dir DIR`",
    ),
    (
        &["mini_batch_fit", "workspace", "batch_sents_multiple_of", "required_batch_size_multiple"],
        "there is nothing to set: batches have up to `train.batch_tokens` tokens, and one that a GPU's memory is too \
         small for is computed in parts",
    ),
    (
        &["maxi_batch", "maxi_batch_sort", "bucket_width", "bucket_size", "pool_factor", "shuffle", "shuffle_in_ram"],
        "there is nothing to set: sentences of like length are batched together, in another order in each epoch",
    ),
    (
        &["truecase", "truecaser", "all_caps_every", "english_title_case_every"],
        "there is no truecasing: models learn case from text, or do without it with `tokenizer.lowercase = true`",
    ),
    (
        &["guided_alignment", "guided_alignment_weight", "alignment_layer", "alignment_heads"],
        "there is no training on word alignments; `mt translate --alignment` gives those that attention shows",
    ),
    (
        &["tensorboard", "tensorboard_logdir", "tensorboard_log_dir", "valid_log", "log", "log_file"],
        "there is nothing to set: log.jsonl, report.html and tensorboard/ are always written to the run's directory",
    ),
    (&["resume", "continue_training", "reload_model", "restore"], "a run goes on with `mt train --resume`"),
    (&["overwrite", "overwrite_output", "no_reload"], "a run is replaced with `mt train --overwrite`"),
    (
        &["devices", "device_ids", "gpus", "gpu_ranks", "num_gpus", "world_size", "distributed_world_size"],
        "`runtime.device` names one device, such as \"cuda:1\"; `mt train --devices 4` trains on several GPUs",
    ),
    (&["right_left", "right_to_left"], "there is no training from right to left"),
    (
        &["factors", "factors_combine", "source_factors"],
        "there are no factors: tags can stand before a line (`tokenizer.tags`)",
    ),
    (&["models"], "`mt translate --model A --model B` translates with several models"),
    (&["max_output_length"], "`mt translate --max-length N` limits the length of translations"),
    (&["n_best"], "`mt translate --n-best N` gives the N best translations"),
    (
        &[
            "output_sampling",
            "sampling_topk",
            "sampling_topp",
            "temperature",
            "random_sampling_topk",
            "random_sampling_topp",
            "random_sampling_temp",
        ],
        "`mt translate --sample` draws translations, with `--top-k`, `--top-p` and `--temperature`",
    ),
    (
        &["diverse_beam_groups", "diverse_beam_strength"],
        "`mt translate --beam-groups N --diversity X` gives translations that differ",
    ),
    (
        &["force_decode", "prefix_size", "target_prefix", "has_prompt", "tgt_file_prefix"],
        "`mt translate --prefix-file FILE` says how translations begin",
    ),
    (&["constraints", "json_input"], "with `mt translate --json-input`, `must` and `avoid` say what a translation has"),
    (&["alignment", "print_alignment", "report_align"], "`mt translate --alignment` gives the alignment of words"),
    (
        &["shortlist", "restrict_lexicon"],
        "`mt translate --shortlist FILE` takes a shortlist; with `--json-input`, each line can `avoid` words",
    ),
];

/// Names that mean something else in some tables than elsewhere, or something only there: tables, our key, others'
/// names.
pub(super) const LOCAL: &[(&[&str], &str, &[&str])] = &[
    (&["data.train", "data.valid", "data.test"], "source", &["src", "path_src"]),
    (&["data.train", "data.valid", "data.test"], "target", &["tgt", "trg", "path_tgt"]),
    (&["tokenizer"], "path", &["model", "tokenizer_file", "file"]),
    (&["tokenizer"], "normalization", &["normalize", "normalizer"]),
    (&["tokenizer"], "kind", &["model_type"]),
    (&["tokenizer", "train.schedule", "train.optimizer"], "kind", &["type", "name"]),
    (&["train"], "batch_tokens", &["max_sentences"]),
    (&["decode"], "batch_tokens", &["batch_size", "max_sentences", "mini_batch", "mini_batch_words", "max_tokens"]),
];

/// Values: our key (dotted), our value, the names that others have for it.
pub(super) const VALUES: &[(&str, &str, &[&str])] = &[
    ("tokenizer.normalization", "nfkc", &["nmt_nfkc"]),
    ("tokenizer.normalization", "none", &["identity"]),
    ("model.preset", "transformer-tiny", &["tiny"]),
    ("model.preset", "transformer-small", &["small", "transformer_iwslt_de_en"]),
    ("model.preset", "transformer-base", &["base", "transformer", "transformer_wmt_en_de"]),
    (
        "model.preset",
        "transformer-big",
        &["big", "large", "transformer_wmt_en_de_big", "transformer_vaswani_wmt_en_de_big"],
    ),
    ("model.activation", "swish", &["silu"]),
    ("valid.metric", "loss", &["ppl", "perplexity", "cross_entropy", "ce", "ce_mean_words", "nll"]),
    ("train.schedule.kind", "inverse_sqrt", &["inverse_square_root", "inv_sqrt", "rsqrt"]),
    ("train.schedule.kind", "plateau", &["plateau_reduce", "reduce_lr_on_plateau"]),
    ("train.schedule.kind", "linear", &["polynomial_decay"]),
    ("train.schedule.kind", "constant", &["fixed"]),
    ("runtime.precision", "bf16", &["fp16", "float16", "half", "bfloat16", "mixed"]),
    ("runtime.precision", "f32", &["fp32", "float32", "full"]),
];

/// Tokenizers that are not learnt here: others' values of `tokenizer.kind`, and what to write.
pub(super) const READ: &[(&[&str], &str)] = &[
    (
        &["sentencepiece", "spm", "unigram"],
        "for a SentencePiece model, write `path = \"FILE.model\"` instead of `kind`",
    ),
    (&["huggingface", "hf", "wordpiece"], "for a tokenizer.json, write `path = \"FILE.json\"` instead of `kind`"),
];
