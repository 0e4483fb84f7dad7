//! What `config.json` and `generation_config.json` say, as our `[model]` and `[decode]`.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::{Activation, Config, DecodeConfig, ModelConfig, Sinusoid, Tie};
use crate::decode::translate::TranslateOptions;
use crate::decode::{MAX_BEAM, PenaltyKind};
use crate::error::{Error, Result};
use crate::interop::search::{self, OURS};

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
    "num_hidden_layers",
    "num_labels",
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

/// Keys of the search. If there is a `generation_config.json`, `transformers` does not look for them in `config.json`.
const SEARCH: &[&str] = &[
    "bad_words_ids",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
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

/// More positions than any such model has; the limit matters because a row of sines is computed for each.
const MOST_POSITIONS: usize = 1 << 16;

/// What the two files say.
pub(super) struct Settings {
    pub(super) config: Config,
    /// The sizes of the source's and the target's vocabulary.
    pub(super) sizes: [usize; 2],
    /// Whether source and target have one embedding.
    pub(super) is_shared: bool,
    pub(super) pad: u32,
    pub(super) eos: u32,
    /// What a translation begins with.
    pub(super) start: u32,
    /// Tokens that are never in a translation.
    pub(super) forbidden: Vec<u32>,
    /// Whether `transformers` shares out the probability of more than padding.
    pub(super) renormalizes_more: bool,
    /// The file of the target's own tokenizer, if `mt export` wrote one.
    pub(super) target_tokenizer: Option<String>,
}

/// The name and the keys of one of the two files.
pub(super) type File<'a> = (&'a Path, &'a Map<String, Value>);

/// The keys of a file, and what is wrong with them.
struct Keys<'a> {
    /// `generation_config.json`, if there is one, and `config.json`. The first that has a key takes precedence.
    files: (Option<File<'a>>, File<'a>),
    known: HashSet<&'static str>,
    /// Keys whose values cannot be used: errors that merely follow from them are not reported.
    bad: HashSet<&'static str>,
    problems: Vec<Error>,
}

impl<'a> Keys<'a> {
    fn new(generation: Option<File<'a>>, config: File<'a>) -> Self {
        Self { files: (generation, config), known: HashSet::new(), bad: HashSet::new(), problems: Vec::new() }
    }

    /// A value that is not null, and its file.
    fn get(&mut self, key: &'static str) -> Option<(&'a Value, &'a Path)> {
        self.known.insert(key);
        self.find(key)
    }

    fn find(&self, key: &str) -> Option<(&'a Value, &'a Path)> {
        let (generation, config) = self.files;
        let is_only_there = generation.is_some() && SEARCH.contains(&key);
        let files = [generation, (!is_only_there).then_some(config)];
        files.into_iter().flatten().find_map(|(file, keys)| Some((keys.get(key).filter(|v| !v.is_null())?, file)))
    }

    /// The file that has a key.
    fn file_of(&self, key: &str) -> &'a Path {
        self.find(key).map_or(self.config_file(), |(_, file)| file)
    }

    fn config_file(&self) -> &'a Path {
        self.files.1.0
    }

    fn is_bad(&self, key: &str) -> bool {
        self.bad.contains(key)
    }

    fn problem(&mut self, what: String, file: &Path) {
        self.problems.push(Error::failure(what).at(file));
    }

    /// A value converted by `read`; if it is missing, `default`, or an error if there is no default.
    fn value<T: Default>(
        &mut self,
        key: &'static str,
        default: Option<T>,
        kind: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> T {
        let file = self.config_file();
        match (self.get(key), default) {
            (Some((value, file)), _) => read(value).unwrap_or_else(|| {
                self.problem(format!("`{key}` is {value}, which is not {kind}"), file);
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

    fn size(&mut self, key: &'static str, default: Option<usize>) -> usize {
        self.value(key, default, "a whole number that mt could take", |value| {
            usize::try_from(value.as_u64()?).ok().filter(|size| *size <= 1 << 24)
        })
    }

    /// As [`Keys::size`], of what takes no memory.
    fn count(&mut self, key: &'static str, default: usize) -> usize {
        self.value(key, Some(default), "a whole number", |value| usize::try_from(value.as_u64()?).ok())
    }

    fn id(&mut self, key: &'static str) -> u32 {
        self.value(key, None, "the id of one piece", |value| u32::try_from(single(value).as_u64()?).ok())
    }

    fn fraction(&mut self, key: &'static str) -> f64 {
        self.value(key, Some(0.0), "at least 0 and below 1", |v| v.as_f64().filter(|x| (0.0..1.0).contains(x)))
    }

    fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.value(key, Some(default), "true or false", Value::as_bool)
    }

    /// A size that encoder and decoder must share.
    fn shared_size(&mut self, [encoder, decoder]: [&'static str; 2]) -> usize {
        let [a, b] = [encoder, decoder].map(|key| self.size(key, None));
        if a != b && a > 0 && b > 0 {
            let file = self.config_file();
            self.problem(format!("`{encoder}` is {a} and `{decoder}` {b}; in mt they must be the same"), file);
        }
        a
    }

    /// Checks the keys that may only have one value.
    fn only(&mut self) {
        for (key, allowed) in ONLY {
            if let Some((value, file)) = self.get(key).filter(|(value, _)| !allowed.contains(value)) {
                self.problem(format!("`{key}` is {value}, but mt has only models with {}", allowed[0]), file);
            }
        }
        for (key, allowed) in ONLY_NUMBERS {
            if let Some((value, file)) = self.get(key).filter(|(value, _)| value.as_f64() != Some(*allowed)) {
                self.problem(format!("`{key}` is {value}, but mt has only {allowed} here"), file);
            }
        }
        if let Some((value, file)) = self.get("model_type").filter(|(value, _)| **value != json!("marian")) {
            self.problem(format!("`model_type` is {value}, not \"marian\""), file);
        }
    }

    /// Reports all other keys: since we do not know them, they may mean a different model.
    fn unknown(&mut self) {
        let (generation, config) = self.files;
        for (file, keys) in generation.into_iter().chain([config]) {
            let is_known =
                |key: &str| self.known.contains(key) || WITHOUT_EFFECT.contains(&key) || key.starts_with('_');
            // Empty values ask for nothing.
            let asks = |value: &Value| !matches!(value, Value::Null) && *value != json!({}) && *value != json!([]);
            for (key, value) in keys.iter().filter(|(key, value)| !is_known(key) && asks(value)) {
                self.problems.push(Error::failure(format!("mt does not know `{key}`, which is {value}")).at(file));
            }
        }
    }
}

/// The only element of a list that has one, else the value itself.
fn single(value: &Value) -> &Value {
    match value.as_array().map(Vec::as_slice) {
        Some([only]) => only,
        _ => value,
    }
}

impl Settings {
    /// Reads both files.
    ///
    /// # Errors
    /// Something is missing or not supported; all problems are named.
    pub(super) fn read(config: File<'_>, generation: Option<File<'_>>) -> Result<Self> {
        let mut keys = Keys::new(generation, config);
        keys.only();
        let source = keys.size("vocab_size", None);
        let target = keys.size("decoder_vocab_size", Some(source));
        let is_shared = keys.flag("share_encoder_decoder_embeddings", true);
        if is_shared && source != target && !keys.is_bad("vocab_size") && !keys.is_bad("decoder_vocab_size") {
            keys.problem(format!("one embedding for vocabularies of {source} and {target} pieces"), config.0);
        }
        let mut new = Self {
            config: Config { model: model(&mut keys, is_shared), ..Config::default() },
            sizes: [source, target],
            is_shared,
            pad: keys.id("pad_token_id"),
            eos: keys.id("eos_token_id"),
            start: keys.id("decoder_start_token_id"),
            forbidden: Vec::new(),
            renormalizes_more: false,
            target_tokenizer: None,
        };
        let forbids_padding;
        (new.forbidden, forbids_padding) = forbidden(&mut keys, new.pad);
        new.decode(&mut keys);
        // `transformers` adds padding to Marian's vocabulary, with a logit of zero, and so takes its share away again.
        let renormalizes = keys.flag("renormalize_logits", false);
        new.config.model.output_padding = !(renormalizes && forbids_padding);
        let decode = &new.config.decode;
        new.renormalizes_more =
            renormalizes && (new.forbidden.len() > 1 || decode.no_repeat_ngram > 0 || decode.min_length > 0);
        keys.known.insert(OURS);
        keys.unknown();
        let positions = new.config.model.max_length;
        // The positions, minus two for the end and a tag. Longer lines are translated in parts.
        new.config.data.max_length = positions.saturating_sub(2).max(1);
        new.restore(config.1);
        new.config.tokenizer.vocab_size = target.max(300);
        let special =
            [("pad_token_id", new.pad), ("eos_token_id", new.eos), ("decoder_start_token_id", new.start)].into_iter();
        let forbidden = new.forbidden.iter().skip(1).map(|id| ("bad_words_ids", *id));
        for (key, id) in special.chain(forbidden).filter(|(_, id)| *id as usize >= target && target > 0) {
            let file = keys.file_of(key);
            keys.problem(format!("`{key}` has the id {id}, beyond the vocabulary's {target} pieces"), file);
        }
        if keys.problems.is_empty() {
            return Ok(new);
        }
        Err(Error::many(keys.problems))
    }

    /// Restores what `mt export` stored: what `transformers` loses when it saves the model again, the length of the lines that
    /// the model was trained on, and its search options unless the other keys have been changed since.
    fn restore(&mut self, config: &Map<String, Value>) {
        let Some(ours) = config.get(OURS) else { return };
        let longest = ours["max_length"].as_u64().and_then(|length| usize::try_from(length).ok());
        if let Some(length) = longest.filter(|length| (1..self.config.data.max_length).contains(length)) {
            self.config.data.max_length = length;
        }
        if let Some(sinusoid) = ours["sinusoid"].as_str().and_then(Sinusoid::named) {
            self.config.model.sinusoid = sinusoid;
        }
        self.target_tokenizer = ours["target_tokenizer"].as_str().map(str::to_owned);
        let decode = serde_json::from_value::<DecodeConfig>(ours["decode"].clone()).ok();
        let Some(decode) = decode.filter(|decode| TranslateOptions::of(decode).check().is_ok()) else { return };
        let written = search::keys(&decode, self.config.model.max_length);
        let nowhere = Path::new("");
        let mut keys = Keys::new(Some((nowhere, &written)), (nowhere, config));
        let now = self.config.decode.clone();
        self.decode(&mut keys);
        self.config.decode = if self.config.decode == now { decode } else { now };
    }

    /// How the model is searched by default.
    fn decode(&mut self, keys: &mut Keys) {
        let decode = &mut self.config.decode;
        decode.beam = keys.size("num_beams", Some(1));
        if (decode.beam == 0 || decode.beam > MAX_BEAM) && !keys.is_bad("num_beams") {
            let file = keys.file_of("num_beams");
            keys.problem(format!("`num_beams` is {}, not from 1 to {MAX_BEAM}", decode.beam), file);
        }
        decode.length_penalty_kind = PenaltyKind::Power;
        decode.length_penalty = keys.value("length_penalty", Some(1.0), "a number", Value::as_f64);
        // `true` stops when as many as the beam is wide have finished; "never" when nothing can become better, `false` nearly so.
        decode.patience = keys.value("early_stopping", Some(0.0), "true, false or \"never\"", |value| match value {
            Value::Bool(stops) => Some(if *stops { 1.0 } else { 0.0 }),
            Value::String(text) if text == "never" => Some(0.0),
            _ => None,
        });
        decode.no_repeat_ngram = keys.count("no_repeat_ngram_size", 0);
        // Lengths in `transformers` include the start token.
        decode.min_length = keys.count("min_length", 0).saturating_sub(1).max(keys.count("min_new_tokens", 0));
        let forced = keys.get("forced_eos_token_id");
        if let Some((id, file)) = forced.filter(|(id, _)| single(id).as_u64() != Some(self.eos.into())) {
            keys.problem(format!("`forced_eos_token_id` is {id}, not the end of the sentence"), file);
        }
        let longest = keys.count("max_length", self.config.model.max_length);
        // If both are there, `transformers` obeys the number of new tokens.
        let longest = keys.count("max_new_tokens", longest.saturating_sub(1)).saturating_add(1);
        decode.max_length_ratio = 0.0;
        decode.max_length_extra = longest.saturating_sub(if forced.is_some() { 2 } else { 1 }).max(1);
        decode.min_length = decode.min_length.min(decode.max_length_extra);
    }
}

fn model(keys: &mut Keys, is_shared: bool) -> ModelConfig {
    let is_tied = keys.flag("tie_word_embeddings", true);
    let activation =
        keys.value("activation_function", Some("gelu".to_owned()), "text", |v| Some(v.as_str()?.to_owned()));
    let name = activation;
    let activation = match name.as_str() {
        "silu" => Some(Activation::Swish),
        name => Activation::named(name),
    };
    if activation.is_none() && !keys.is_bad("activation_function") {
        let what = format!("`activation_function` is {name:?}, not one of {}", Activation::NAMES.join(", "));
        let file = keys.config_file();
        keys.problem(what, file);
    }
    let (d_model, heads) =
        (keys.size("d_model", None), keys.shared_size(["encoder_attention_heads", "decoder_attention_heads"]));
    let file = keys.config_file();
    if heads == 0 || d_model % heads != 0 || d_model % 2 != 0 {
        keys.problem(format!("a width of {d_model} is odd, or {heads} heads cannot share it evenly"), file);
    }
    let dropout = keys.fraction("dropout");
    let model = ModelConfig {
        d_model,
        d_ff: keys.shared_size(["encoder_ffn_dim", "decoder_ffn_dim"]),
        heads,
        d_k: d_model / heads.max(1),
        d_v: d_model / heads.max(1),
        encoder_layers: keys.size("encoder_layers", None),
        decoder_layers: keys.size("decoder_layers", None),
        sinusoid: Sinusoid::Halves,
        tie: match (is_shared, is_tied) {
            (true, true) => Tie::All,
            (false, true) => Tie::Decoder,
            (_, false) => Tie::None,
        },
        scale_embedding: keys.flag("scale_embedding", false),
        activation: activation.unwrap_or(Activation::Relu),
        dropout,
        embedding_dropout: dropout,
        attention_dropout: keys.fraction("attention_dropout"),
        activation_dropout: keys.fraction("activation_dropout"),
        max_length: positions(keys),
        ..ModelConfig::default()
    };
    for (name, size) in [
        ("max_position_embeddings", model.max_length / 2),
        ("d_model", model.d_model),
        ("encoder_ffn_dim", model.d_ff),
        ("encoder_layers", model.encoder_layers),
        ("decoder_layers", model.decoder_layers),
    ] {
        let value = keys.get(name).map(|(value, _)| value).filter(|value| value.is_u64());
        if let (0, false, Some(value)) = (size, keys.is_bad(name), value) {
            keys.problem(format!("`{name}` is {value}, which is too small"), file);
        }
    }
    model
}

/// How many positions there are.
fn positions(keys: &mut Keys) -> usize {
    const KEY: &str = "max_position_embeddings";
    let positions = keys.size(KEY, Some(1024));
    if positions > MOST_POSITIONS {
        let file = keys.file_of(KEY);
        keys.problem(format!("`{KEY}` is {positions}, but mt imports at most {MOST_POSITIONS}"), file);
    }
    positions
}

/// Padding, and the tokens that `bad_words_ids` names; and whether padding is one of these.
fn forbidden(keys: &mut Keys, pad: u32) -> (Vec<u32>, bool) {
    let (mut forbidden, mut has_padding) = (vec![pad], false);
    let Some((words, file)) = keys.get("bad_words_ids") else { return (forbidden, false) };
    if !words.is_array() {
        keys.problem(format!("`bad_words_ids` is {words}, which is not a list"), file);
    }
    let id = |word: &Value| match word.as_array().map(Vec::as_slice) {
        Some([id]) => u32::try_from(id.as_u64()?).ok(),
        _ => None,
    };
    for word in words.as_array().map_or(&[][..], Vec::as_slice) {
        match id(word) {
            Some(id) if id == pad => has_padding = true,
            Some(id) if forbidden.contains(&id) => {}
            Some(id) => forbidden.push(id),
            None => keys.problem(format!("`bad_words_ids` has {word}, but mt can forbid only single tokens"), file),
        }
    }
    (forbidden, has_padding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_positions_than_any_model_has_are_refused() {
        let problems = |positions: u64| {
            let config = Map::from_iter([("max_position_embeddings".to_owned(), json!(positions))]);
            let [config_file, generation_file] = ["config.json", "generation_config.json"].map(Path::new);
            let read = Settings::read((config_file, &config), Some((generation_file, &Map::new())));
            read.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let told = "`max_position_embeddings` is 65537, but mt imports at most 65536\n  --> config.json";
        assert!(problems(65_537).contains(told), "{}", problems(65_537));
        assert!(!problems(65_536).contains("max_position_embeddings"), "{}", problems(65_536));
    }
}
