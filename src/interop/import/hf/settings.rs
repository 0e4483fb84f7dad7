//! What `config.json` and `generation_config.json` say, as our `[model]` and `[decode]`.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::Architecture;
use super::keys::{File, Keys, single};
use crate::config::Config;
use crate::decode::translate::TranslateOptions;
use crate::decode::{DecodeConfig, MAX_BEAM, PenaltyKind};
use crate::error::{Error, Result};
use crate::escape::{brief, quoted};
use crate::interop::search::{self, OURS};
use crate::model::{Activation, ModelConfig, NormKind, NormPlacement, PositionKind, Sinusoid, Tie};

/// More positions than any such model has; the limit matters because a row of sines is computed for each.
const MOST_POSITIONS: usize = 1 << 16;

/// More heads than any T5 model has: a table of all distances is made for each.
const MOST_HEADS: usize = 1024;

/// More buckets of relative positions than any such model has; `[model]` allows no more.
const MOST_BUCKETS: usize = 1024;

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
    /// The language that a translation begins with if nothing else is asked for.
    pub(super) language: Option<u32>,
    /// Tokens that are never in a translation.
    pub(super) forbidden: Vec<u32>,
    /// Whether `transformers` shares out the probability of more than padding.
    pub(super) renormalizes_more: bool,
    /// Whether the decoder's states are divided by √d_model before the output projection, as in T5 1.0.
    pub(super) scales_output: bool,
    /// The file of the target's own tokenizer, if `mt export` wrote one.
    pub(super) target_tokenizer: Option<String>,
    /// What users have to know.
    pub(super) notes: Vec<String>,
}

impl Settings {
    /// Reads both files.
    ///
    /// # Errors
    /// Something is missing or not supported; all problems are named.
    pub(super) fn read(architecture: Architecture, config: File<'_>, generation: Option<File<'_>>) -> Result<Self> {
        let mut keys = Keys::new(generation, config);
        keys.only(architecture);
        let source = keys.size("vocab_size", None);
        let (target, is_shared) = match architecture {
            Architecture::Marian => {
                (keys.size("decoder_vocab_size", Some(source)), keys.flag("share_encoder_decoder_embeddings", true))
            }
            Architecture::M2m100 | Architecture::Mbart | Architecture::T5 => (source, true),
        };
        if is_shared && source != target && !keys.is_bad("vocab_size") && !keys.is_bad("decoder_vocab_size") {
            keys.problem(format!("one embedding for vocabularies of {source} and {target} pieces"), config.0);
        }
        // mT5 never does, whatever it says.
        let is_t5 = keys.find("model_type").is_none_or(|(name, _)| name == "t5");
        let scales_output = architecture == Architecture::T5 && is_t5 && {
            let is_tied = keys.flag("tie_word_embeddings", true);
            keys.flag("scale_decoder_outputs", is_tied)
        };
        let model = match architecture {
            Architecture::T5 => t5_model(&mut keys),
            _ => model(&mut keys, architecture, is_shared),
        };
        let mut new = Self {
            config: Config { model, ..Config::default() },
            sizes: [source, target],
            is_shared,
            pad: keys.id("pad_token_id"),
            eos: keys.id("eos_token_id"),
            start: keys.id("decoder_start_token_id"),
            language: None,
            forbidden: Vec::new(),
            renormalizes_more: false,
            scales_output,
            target_tokenizer: None,
            notes: Vec::new(),
        };
        if architecture == Architecture::M2m100 {
            // Those of fairseq begin after that of padding, as the model's own file has it.
            let pad = config.1.get("pad_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
            new.config.model.first_position = pad.unwrap_or(new.pad) as usize + 1;
        }
        if matches!(architecture, Architecture::M2m100 | Architecture::Mbart) {
            new.language(&mut keys);
        }
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

    /// Restores what `mt export` stored: what `transformers` loses when it saves the model again, the length of the
    /// lines that the model was trained on, and its search options unless the other keys have been changed since.
    fn restore(&mut self, config: &Map<String, Value>) {
        let Some(ours) = config.get(OURS) else { return };
        let longest = ours["max_length"].as_u64().and_then(|length| usize::try_from(length).ok());
        if let Some(length) = longest.filter(|length| (1..self.config.data.max_length).contains(length)) {
            self.config.data.max_length = length;
        }
        if let Some(sinusoid) = ours["sinusoid"].as_str().and_then(Sinusoid::named) {
            self.config.model.sinusoid = sinusoid;
        }
        if let Some(dropout) = ours["embedding_dropout"].as_f64().filter(|share| (0.0..1.0).contains(share)) {
            self.config.model.embedding_dropout = dropout;
        }
        self.target_tokenizer = ours["target_tokenizer"].as_str().map(str::to_owned);
        let decode = serde_json::from_value::<DecodeConfig>(ours["decode"].clone()).ok();
        let Some(decode) = decode.filter(|decode| TranslateOptions::from_config(decode).check().is_ok()) else {
            return;
        };
        let written = search::keys(&decode, self.config.model.max_length);
        let nowhere = Path::new("");
        let mut keys = Keys::new(Some((nowhere, &written)), (nowhere, config));
        let now = self.config.decode.clone();
        self.decode(&mut keys);
        self.config.decode = if self.config.decode == now { decode } else { now };
    }

    /// With which language a translation begins, after the end token.
    fn language(&mut self, keys: &mut Keys) {
        let drops = |key: &&&str| keys.find(key).is_some_and(|(value, _)| value.as_f64().is_some_and(|p| p > 0.0));
        if let Some(key) = ["encoder_layerdrop", "decoder_layerdrop"].iter().find(drops) {
            self.notes.push(format!(
                "the model was trained with `{key}`, leaving out whole layers at random; fine-tuning in mt does not"
            ));
        }
        if let Some((id, file)) = keys.get("forced_bos_token_id") {
            self.language = single(id).as_u64().and_then(|id| u32::try_from(id).ok());
            if self.language.is_none() {
                keys.problem(
                    format!("`forced_bos_token_id` is {}, not the id of a language", brief(&id.to_string())),
                    file,
                );
            }
        }
        let (start, end) = (self.start, self.eos);
        if start != end && !keys.is_bad("decoder_start_token_id") && !keys.is_bad("eos_token_id") {
            let file = keys.file_of("decoder_start_token_id");
            let what = format!(
                "`decoder_start_token_id` is {start}, not the end of the sentence ({end}): mt reads NLLB-200, M2M-100 \
                 and mBART-50, but not mBART-25"
            );
            keys.problem(what, file);
        }
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
        // `true` stops when as many as the beam is wide have finished; "never" when nothing can become better, `false`
        // nearly so.
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

fn model(keys: &mut Keys, architecture: Architecture, is_shared: bool) -> ModelConfig {
    let is_tied = keys.flag("tie_word_embeddings", true);
    // The defaults of each class in `transformers`.
    let (activation, is_scaled, attention_dropout) = match architecture {
        Architecture::M2m100 => ("relu", true, 0.1),
        Architecture::Marian | Architecture::Mbart | Architecture::T5 => ("gelu", false, 0.0),
    };
    let name = keys.value("activation_function", Some(activation.to_owned()), "text", |v| Some(v.as_str()?.to_owned()));
    let activation = activation_named(&name);
    if activation.is_none() && !keys.is_bad("activation_function") {
        let what = format!("`activation_function` is {}, not one of {}", quoted(&name), Activation::NAMES.join(", "));
        let file = keys.config_file();
        keys.problem(what, file);
    }
    let (d_model, heads) =
        (keys.size("d_model", None), keys.shared_size(["encoder_attention_heads", "decoder_attention_heads"]));
    let file = keys.config_file();
    if heads == 0 || d_model % heads != 0 || d_model % 2 != 0 {
        keys.problem(format!("a width of {d_model} is odd, or {heads} heads cannot share it evenly"), file);
    }
    let dropout = keys.fraction("dropout", 0.1);
    let model = ModelConfig {
        d_model,
        d_ff: keys.shared_size(["encoder_ffn_dim", "decoder_ffn_dim"]),
        heads,
        d_k: d_model / heads.max(1),
        d_v: d_model / heads.max(1),
        encoder_layers: keys.size("encoder_layers", None),
        decoder_layers: keys.size("decoder_layers", None),
        tie: match (is_shared, is_tied) {
            (true, true) => Tie::All,
            (false, true) => Tie::Decoder,
            (_, false) => Tie::None,
        },
        scale_embedding: keys.flag("scale_embedding", is_scaled),
        activation: activation.unwrap_or(Activation::Relu),
        dropout,
        embedding_dropout: dropout,
        attention_dropout: keys.fraction("attention_dropout", attention_dropout),
        activation_dropout: keys.fraction("activation_dropout", 0.0),
        max_length: positions(keys),
        ..form(architecture)
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

/// An activation by its name in `ACT2FN` of `transformers`.
fn activation_named(name: &str) -> Option<Activation> {
    match name {
        "silu" => Some(Activation::Swish),
        "gelu_new" | "gelu_pytorch_tanh" => Some(Activation::GeluTanh),
        name => Activation::named(name),
    }
}

/// T5 models have no longest sequence; they were trained on 512 tokens.
const T5_POSITIONS: usize = 1024;

/// The model of a T5 configuration, whose keys have names of their own.
fn t5_model(keys: &mut Keys) -> ModelConfig {
    // These follow from `feed_forward_proj`, or have no effect.
    let others = ["initializer_factor", "n_positions", "tie_word_embeddings", "scale_decoder_outputs"];
    keys.known.extend(others);
    let name = keys.value("feed_forward_proj", Some("relu".to_owned()), "text", |v| Some(v.as_str()?.to_owned()));
    let (gated, activation) = match name.strip_prefix("gated-") {
        // So `transformers` reads it.
        Some("gelu") => (true, Some(Activation::GeluTanh)),
        Some(name) => (true, activation_named(name)),
        None => (false, activation_named(&name)),
    };
    // What follows from that key counts less than these.
    let gated = keys.flag("is_gated_act", gated);
    let own = keys.value("dense_act_fn", Some(String::new()), "text", |v| Some(v.as_str()?.to_owned()));
    let (name, activation) = if own.is_empty() { (name, activation) } else { (own.clone(), activation_named(&own)) };
    let file = keys.config_file();
    if activation.is_none() && !keys.is_bad("feed_forward_proj") {
        keys.problem(format!("`feed_forward_proj` is {}, whose activation mt does not have", quoted(&name)), file);
    }
    let layers = keys.size("num_layers", None);
    let width = keys.size("d_kv", None);
    let dropout = keys.fraction("dropout_rate", 0.1);
    let model = ModelConfig {
        d_model: keys.size("d_model", None),
        d_ff: keys.size("d_ff", None),
        heads: keys.size("num_heads", None),
        d_k: width,
        d_v: width,
        encoder_layers: layers,
        decoder_layers: keys.size("num_decoder_layers", Some(layers)),
        norm_eps: keys.value("layer_norm_epsilon", Some(1e-6), "a number above 0", |value| {
            value.as_f64().filter(|eps| *eps > 0.0 && *eps <= 1.0)
        }),
        relative_buckets: keys.size("relative_attention_num_buckets", Some(32)),
        relative_distance: keys.size("relative_attention_max_distance", Some(128)),
        activation: activation.unwrap_or(Activation::Relu),
        gated,
        dropout,
        embedding_dropout: dropout,
        attention_dropout: dropout,
        activation_dropout: dropout,
        ..form(Architecture::T5)
    };
    let sizes = [
        ("d_model", model.d_model),
        ("d_kv", width),
        ("d_ff", model.d_ff),
        ("num_heads", model.heads),
        ("num_layers", layers),
        ("num_decoder_layers", model.decoder_layers),
    ];
    if model.heads > MOST_HEADS {
        keys.problem(format!("{} heads, and mt has at most {MOST_HEADS} here", model.heads), file);
    }
    for (name, _) in sizes.into_iter().filter(|(_, size)| *size == 0) {
        if !keys.is_bad(name) {
            keys.problem(format!("`{name}` is 0"), file);
        }
    }
    if !model.d_model.is_multiple_of(2) {
        keys.problem(format!("a width of {} is odd", model.d_model), file);
    }
    let (buckets, far) = (model.relative_buckets, model.relative_distance);
    let is_possible = (4..=MOST_BUCKETS).contains(&buckets) && far > buckets / 2 && far <= MOST_POSITIONS;
    if !is_possible && !keys.is_bad("relative_attention_num_buckets") {
        let what = format!(
            "{buckets} buckets for relative positions up to {far}: mt has 4 to {MOST_BUCKETS} buckets, and more than \
             half as many positions, at most {MOST_POSITIONS}"
        );
        keys.problem(what, file);
    }
    model
}

/// What all models of an architecture have in common.
fn form(architecture: Architecture) -> ModelConfig {
    let pre = ModelConfig { norm: NormPlacement::Pre, final_norm: true, ..ModelConfig::default() };
    match architecture {
        Architecture::Marian => ModelConfig { sinusoid: Sinusoid::Halves, ..ModelConfig::default() },
        Architecture::M2m100 => ModelConfig { sinusoid: Sinusoid::Tensor2Tensor, ..pre },
        Architecture::Mbart => ModelConfig { positions: PositionKind::Learned, embedding_norm: true, ..pre },
        Architecture::T5 => ModelConfig {
            norm_kind: NormKind::Rms,
            positions: PositionKind::Relative,
            tie: Tie::Embeddings,
            scale_embedding: false,
            attention_bias: false,
            feed_forward_bias: false,
            max_length: T5_POSITIONS,
            ..pre
        },
    }
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
    let mut known = HashSet::from([pad]);
    let Some((words, file)) = keys.get("bad_words_ids") else { return (forbidden, false) };
    if !words.is_array() {
        keys.problem(format!("`bad_words_ids` is {}, which is not a list", brief(&words.to_string())), file);
    }
    let id = |word: &Value| match word.as_array().map(Vec::as_slice) {
        Some([id]) => u32::try_from(id.as_u64()?).ok(),
        _ => None,
    };
    // A list of ids, which `transformers` refuses, too.
    if words.as_array().and_then(|list| list.first()).is_some_and(Value::is_u64) {
        let what = "`bad_words_ids` has ids where it should have lists of them: `[[7], [8]]`, not `[7, 8]`";
        keys.problem(what.to_owned(), file);
        return (forbidden, false);
    }
    for word in words.as_array().map_or(&[][..], Vec::as_slice) {
        match id(word) {
            Some(id) if id == pad => has_padding = true,
            Some(id) if known.insert(id) => forbidden.push(id),
            Some(_) => {}
            None => keys.problem(
                format!("`bad_words_ids` has {}, but mt can forbid only single tokens", brief(&word.to_string())),
                file,
            ),
        }
    }
    (forbidden, has_padding)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn more_positions_than_any_model_has_are_refused() {
        let problems = |positions: u64| {
            let config = Map::from_iter([("max_position_embeddings".to_owned(), json!(positions))]);
            let [config_file, generation_file] = ["config.json", "generation_config.json"].map(Path::new);
            let read =
                Settings::read(Architecture::Marian, (config_file, &config), Some((generation_file, &Map::new())));
            read.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let told = "`max_position_embeddings` is 65537, but mt imports at most 65536\n  --> config.json";
        assert!(problems(65_537).contains(told), "{}", problems(65_537));
        assert!(!problems(65_536).contains("max_position_embeddings"), "{}", problems(65_536));
    }
}
