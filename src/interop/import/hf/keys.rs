//! The keys of `config.json` and `generation_config.json`, and what each may be.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::Architecture;
use crate::error::Error;
use crate::escape::brief;

/// Keys that change nothing we do, whatever they say; so do all that begin with an underscore.
const WITHOUT_EFFECT: &[&str] = &[
    "architectures",
    "bos_token_id",
    "classif_dropout",
    "classifier_dropout",
    "cls_token_id",
    "dtype",
    // A leftover of another model family; real models state the size of their vocabulary here.
    "extra_pos_embeddings",
    "finetuning_task",
    "id2label",
    "init_std",
    "label2id",
    "mask_token_id",
    // It says which family this is.
    "model_type",
    "num_hidden_layers",
    "num_labels",
    "output_past",
    "problem_type",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    // How a model is loaded and computed.
    "attn_implementation",
    "cache_config",
    "cache_dir",
    "cache_implementation",
    "compile_config",
    "disable_compile",
    "force_download",
    "gradient_checkpointing",
    "local_files_only",
    "low_memory",
    "name_or_path",
    "prefill_chunk_size",
    "proxies",
    "resume_download",
    "return_legacy_cache",
    "revision",
    "subfolder",
    "tf_legacy_loss",
    "token",
    "transformers.js_config",
    "trust_remote_code",
    "use_auth_token",
    "use_bfloat16",
    "use_cache",
    "xla_device",
    // Sampling, which `do_sample` turns on, and a model that assists, which a call names.
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "epsilon_cutoff",
    "eta_cutoff",
    "is_assistant",
    "min_p",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "target_lookbehind",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

/// Keys that may be absent or have this value; any other value means a different model or search.
const ONLY: &[(&str, &[Value])] = &[
    ("add_bias_logits", &[Value::Bool(false)]),
    ("add_cross_attention", &[Value::Bool(false)]),
    ("add_final_layer_norm", &[Value::Bool(false)]),
    ("do_blenderbot_90_layernorm", &[Value::Bool(false)]),
    ("force_bos_token_to_be_generated", &[Value::Bool(false)]),
    ("is_decoder", &[Value::Bool(false)]),
    ("is_encoder_decoder", &[Value::Bool(true)]),
    ("normalize_before", &[Value::Bool(false)]),
    ("normalize_embedding", &[Value::Bool(false)]),
    ("static_position_embeddings", &[Value::Bool(true)]),
    ("tie_encoder_decoder", &[Value::Bool(false)]),
    ("do_sample", &[Value::Bool(false)]),
    ("output_attentions", &[Value::Bool(false)]),
    ("output_hidden_states", &[Value::Bool(false)]),
    ("output_logits", &[Value::Bool(false)]),
    ("output_scores", &[Value::Bool(false)]),
    ("return_dict_in_generate", &[Value::Bool(false)]),
    ("token_healing", &[Value::Bool(false)]),
    ("torchscript", &[Value::Bool(false)]),
    ("remove_invalid_values", &[Value::Bool(false)]),
];

/// Numbers that have no effect with this value; any other value means a different model or search.
const ONLY_NUMBERS: &[(&str, f64)] = &[
    ("encoder_layerdrop", 0.0),
    ("decoder_layerdrop", 0.0),
    ("chunk_size_feed_forward", 0.0),
    ("diversity_penalty", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("guidance_scale", 1.0),
    ("num_beam_groups", 1.0),
    ("num_return_sequences", 1.0),
    ("penalty_alpha", 0.0),
    ("repetition_penalty", 1.0),
];

/// Keys that M2M-100 and mBART models state and do not obey: each of these has only one form.
const IGNORED: &[&str] = &[
    "add_bias_logits",
    "add_final_layer_norm",
    "decoder_layerdrop",
    "do_blenderbot_90_layernorm",
    "encoder_layerdrop",
    "normalize_before",
    "normalize_embedding",
    "static_position_embeddings",
];

/// Keys of the search. If there is a `generation_config.json`, `transformers` does not look for them in `config.json`.
const SEARCH: &[&str] = &[
    "bad_words_ids",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "penalty_alpha",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "token_healing",
];

/// The name and the keys of one of the two files.
pub(super) type File<'a> = (&'a Path, &'a Map<String, Value>);

/// The keys of a file, and what is wrong with them.
pub(super) struct Keys<'a> {
    /// `generation_config.json`, if there is one, and `config.json`. The first that has a key takes precedence.
    pub(super) files: (Option<File<'a>>, File<'a>),
    pub(super) known: HashSet<&'static str>,
    /// Keys whose values cannot be used: errors that merely follow from them are not reported.
    bad: HashSet<&'static str>,
    pub(super) problems: Vec<Error>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(generation: Option<File<'a>>, config: File<'a>) -> Self {
        Self { files: (generation, config), known: HashSet::new(), bad: HashSet::new(), problems: Vec::new() }
    }

    /// A value that is not null, and its file.
    pub(super) fn get(&mut self, key: &'static str) -> Option<(&'a Value, &'a Path)> {
        self.known.insert(key);
        self.find(key)
    }

    pub(super) fn find(&self, key: &str) -> Option<(&'a Value, &'a Path)> {
        let (generation, config) = self.files;
        let is_only_there = generation.is_some() && SEARCH.contains(&key);
        let files = [generation, (!is_only_there).then_some(config)];
        files.into_iter().flatten().find_map(|(file, keys)| Some((keys.get(key).filter(|v| !v.is_null())?, file)))
    }

    /// The file that has a key.
    pub(super) fn file_of(&self, key: &str) -> &'a Path {
        self.find(key).map_or(self.config_file(), |(_, file)| file)
    }

    pub(super) fn config_file(&self) -> &'a Path {
        self.files.1.0
    }

    pub(super) fn is_bad(&self, key: &str) -> bool {
        self.bad.contains(key)
    }

    pub(super) fn problem(&mut self, what: String, file: &Path) {
        self.problems.push(Error::failure(what).at(file));
    }

    /// A value converted by `read`; if it is missing, `default`, or an error if there is no default.
    pub(super) fn value<T: Default>(
        &mut self,
        key: &'static str,
        default: Option<T>,
        kind: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> T {
        let file = self.config_file();
        match (self.get(key), default) {
            (Some((value, file)), _) => read(value).unwrap_or_else(|| {
                self.problem(format!("`{key}` is {}, which is not {kind}", shown(value)), file);
                self.bad.insert(key);
                T::default()
            }),
            (None, Some(default)) => default,
            (None, None) => {
                self.problem(format!("`{key}` is missing"), file);
                self.bad.insert(key);
                T::default()
            }
        }
    }

    pub(super) fn size(&mut self, key: &'static str, default: Option<usize>) -> usize {
        self.value(key, default, "a whole number that mt could take", |value| {
            usize::try_from(value.as_u64()?).ok().filter(|size| *size <= 1 << 24)
        })
    }

    /// As [`Keys::size`], of what takes no memory.
    pub(super) fn count(&mut self, key: &'static str, default: usize) -> usize {
        self.value(key, Some(default), "a whole number", |value| usize::try_from(value.as_u64()?).ok())
    }

    pub(super) fn id(&mut self, key: &'static str) -> u32 {
        self.value(key, None, "the id of one piece", |value| u32::try_from(single(value).as_u64()?).ok())
    }

    pub(super) fn fraction(&mut self, key: &'static str, default: f64) -> f64 {
        self.value(key, Some(default), "at least 0 and below 1", |v| v.as_f64().filter(|x| (0.0..1.0).contains(x)))
    }

    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.value(key, Some(default), "true or false", Value::as_bool)
    }

    /// A size that encoder and decoder must share.
    pub(super) fn shared_size(&mut self, [encoder, decoder]: [&'static str; 2]) -> usize {
        let [a, b] = [encoder, decoder].map(|key| self.size(key, None));
        if a != b && a > 0 && b > 0 {
            let file = self.config_file();
            self.problem(format!("`{encoder}` is {a} and `{decoder}` {b}; in mt they must be the same"), file);
        }
        a
    }

    /// Checks the keys that may only have one value.
    pub(super) fn only(&mut self, architecture: Architecture) {
        let is_obeyed = |key: &str| architecture == Architecture::Marian || !IGNORED.contains(&key);
        self.known.extend(IGNORED.iter().filter(|key| !is_obeyed(key)));
        for (key, allowed) in ONLY.iter().filter(|(key, _)| is_obeyed(key)) {
            if let Some((value, file)) = self.get(key).filter(|(value, _)| !allowed.contains(value)) {
                self.problem(format!("`{key}` is {}, but mt has only models with {}", shown(value), allowed[0]), file);
            }
        }
        for (key, allowed) in ONLY_NUMBERS.iter().filter(|(key, _)| is_obeyed(key)) {
            if let Some((value, file)) = self.get(key).filter(|(value, _)| value.as_f64() != Some(*allowed)) {
                self.problem(format!("`{key}` is {}, but mt has only {allowed} here", shown(value)), file);
            }
        }
    }

    /// Reports all other keys: since we do not know them, they may mean a different model.
    pub(super) fn unknown(&mut self) {
        let (generation, config) = self.files;
        for (file, keys) in generation.into_iter().chain([config]) {
            let is_known =
                |key: &str| self.known.contains(key) || WITHOUT_EFFECT.contains(&key) || key.starts_with('_');
            // Empty values ask for nothing.
            let asks = |value: &Value| !matches!(value, Value::Null) && *value != json!({}) && *value != json!([]);
            for (key, value) in keys.iter().filter(|(key, value)| !is_known(key) && asks(value)) {
                let what = format!("mt does not know `{}`, which is {}", brief(key), shown(value));
                self.problems.push(Error::failure(what).at(file));
            }
        }
    }
}

/// The only element of a list that has one, else the value itself.
pub(super) fn single(value: &Value) -> &Value {
    match value.as_array().map(Vec::as_slice) {
        Some([only]) => only,
        _ => value,
    }
}

/// A value as messages quote it.
fn shown(value: &Value) -> String {
    brief(&value.to_string()).into_owned()
}
