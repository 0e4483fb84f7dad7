//! A CTranslate2 model directory: `model.bin`, `config.json`, vocabularies; and our tokenizers beside them.
//!
//! `model.bin` is little-endian: a version (u32), the name and revision of the specification, then a count of
//! variables, each a name, the number of its dimensions (u8), the dimensions (u32), a type (u8), the number of bytes
//! (u32) and the bytes; then a count of aliases, each two names. A name is its length with the final zero (u16), its
//! bytes, and the zero. Types: 0 float32, 1 int8, 2 int16, 3 int32. Weights are [out, in]; q, k and v of self-attention
//! are one matrix, k and v of cross-attention too; an 8-bit matrix has a `_scale` for each row, by which the original
//! numbers were multiplied.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::json;

use super::{Model, Obstacles, pieces, uneven_width, write_bytes, write_json};
use crate::checkpoint::{whole_directory, write_error};
use crate::choice::choice;
use crate::error::{Error, Result};
use crate::file;
use crate::interop::search;
use crate::model::layout::{output_table, positions_table, relative_table};
use crate::model::{Activation, NormKind, NormPlacement, PositionKind, Stack, positions};
use crate::ops::matmul::int8::Quantised;

/// The version of the file, and the revision of `TransformerSpec`.
const VERSIONS: (u32, u32) = (6, 7);

choice! {
    /// What weights are stored as.
    pub enum Quantization {
        /// 32-bit floats.
        Float32 = "float32",
        /// 8-bit integers, a scale for each row.
        Int8 = "int8",
    }
}

/// A variable of `model.bin`.
enum Variable<'a> {
    Floats(Vec<usize>, Cow<'a, [f32]>),
    Integers(Vec<usize>, Vec<i8>),
    /// A flag or a small number.
    Byte(i8),
    /// A small count.
    Short(i16),
    /// A count.
    Count(i32),
}

impl Variable<'_> {
    fn kind(&self) -> u8 {
        match self {
            Self::Floats(..) => 0,
            Self::Integers(..) | Self::Byte(_) => 1,
            Self::Short(_) => 2,
            Self::Count(_) => 3,
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Floats(shape, _) | Self::Integers(shape, _) => shape,
            Self::Byte(_) | Self::Short(_) | Self::Count(_) => &[],
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Floats(_, values) => 4 * values.len(),
            Self::Integers(_, values) => values.len(),
            Self::Byte(_) => 1,
            Self::Short(_) => 2,
            Self::Count(_) => 4,
        }
    }

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        match self {
            Self::Floats(_, values) => values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes())),
            Self::Integers(_, values) => values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes())),
            Self::Byte(value) => out.write_all(&value.to_le_bytes()),
            Self::Short(value) => out.write_all(&value.to_le_bytes()),
            Self::Count(value) => out.write_all(&value.to_le_bytes()),
        }
    }
}

/// Everything in `model.bin`.
struct Variables<'a> {
    model: &'a Model<'a>,
    quantization: Quantization,
    variables: BTreeMap<String, Variable<'a>>,
    aliases: Vec<(&'static str, &'static str)>,
}

/// Writes the model into a new directory.
///
/// # Errors
/// CTranslate2 cannot run such a model (every obstacle is named), or the directory exists or cannot be written.
pub(super) fn export(model: &Model, quantization: Quantization, out: &Path) -> Result<Vec<String>> {
    refuse(model)?;
    let config = &model.config.model;
    let mut all = Variables { model, quantization, variables: BTreeMap::new(), aliases: Vec::new() };
    for stack in [Stack::Encoder, Stack::Decoder] {
        all.stack(stack)?;
    }
    let tokenizers = model.tokenizers;
    whole_directory(out, |directory| {
        all.write(&directory.join("model.bin"))?;
        let target = &tokenizers.target;
        let piece = |id| target.piece(id).unwrap_or_default();
        write_json(
            directory,
            "config.json",
            &json!({
                "add_source_bos": false, "add_source_eos": !target.language_last(), "bos_token": piece(target.bos_id()),
                "decoder_start_token": piece(target.bos_id()), "eos_token": piece(target.eos_id()),
                "unk_token": piece(target.unk_id()), "layer_norm_epsilon": config.norm_eps,
                "multi_query_attention": false,
            }),
        )?;
        if tokenizers.is_joint() {
            write_json(directory, "shared_vocabulary.json", &pieces(target))?;
        } else {
            write_json(directory, "source_vocabulary.json", &pieces(&tokenizers.source))?;
            write_json(directory, "target_vocabulary.json", &pieces(target))?;
        }
        for (name, tokenizer) in [("source.spm", &tokenizers.source), ("target.spm", target)] {
            if let Some(model) = tokenizer.sentencepiece() {
                write_bytes(directory, name, &model)?;
            }
        }
        tokenizers.save(directory)
    })?;
    Ok(vec![how_to_search(model)])
}

/// The arguments with which CTranslate2 searches as `mt` does.
fn how_to_search(model: &Model) -> String {
    let target = &model.tokenizers.target;
    // Our own tokenizers can split any text into pieces, so their models never learn to produce `<unk>`.
    let must_disable_unk = !target.has_dropout() && target.forbidden().contains(&target.unk_id());
    let (arguments, differences) =
        search::ctranslate2_arguments(&model.config.decode, model.config.model.max_length, must_disable_unk);
    let but = if differences.is_empty() { String::new() } else { format!("; but {}", differences.join(", and ")) };
    let languages = match target.language_last() {
        _ if target.languages().is_empty() => "",
        false => "; begin the source with its language, and give that of the target as target_prefix=[[\"…\"]]",
        true => "; end the source with </s> and its language, and give that of the target as target_prefix=[[\"…\"]]",
    };
    let call = format!("translate_batch(…, {arguments})");
    format!("CTranslate2 keeps no search settings: to search as mt does, call {call}{but}{languages}")
}

fn refuse(model: &Model) -> Result<()> {
    let config = &model.config.model;
    let mut obstacles = Obstacles::new("CTranslate2");
    obstacles.unless(
        config.norm_kind != NormKind::Std,
        "model.norm_kind",
        "it divides by √(σ² + ε), or by the root mean square",
    );
    obstacles.unless(
        config.positions != PositionKind::Rotary,
        "model.positions",
        "mt writes sinusoidal, learned and relative ones there",
    );
    obstacles.unless(config.d_k == config.d_v, "model.d_v", "it has one width of heads, model.d_k");
    obstacles.check()
}

impl<'a> Variables<'a> {
    fn set(&mut self, name: String, variable: Variable<'a>) {
        self.variables.insert(name, variable);
    }

    /// The weights and biases of these projections, concatenated along their rows.
    fn linear(&mut self, name: &str, of: &[String]) -> Result<()> {
        let mut weight = Vec::new();
        let mut columns = 0;
        let mut bias = Vec::new();
        for projection in of {
            let (shape, values) = self.model.parameter(&format!("{projection}.weight"))?;
            columns = shape[1];
            weight.extend_from_slice(values);
            bias.extend_from_slice(self.model.get(&format!("{projection}.bias")).map_or(&[], |(_, values)| values));
        }
        self.matrix(&format!("{name}/weight"), &[weight.len() / columns, columns], weight.into());
        if !bias.is_empty() {
            self.set(format!("{name}/bias"), Variable::Floats(vec![bias.len()], bias.into()));
        }
        Ok(())
    }

    /// A matrix, quantised if asked for.
    fn matrix(&mut self, name: &str, shape: &[usize], values: Cow<'a, [f32]>) {
        match self.quantization {
            Quantization::Float32 => self.set(name.to_owned(), Variable::Floats(shape.to_vec(), values)),
            Quantization::Int8 => {
                let Quantised { values, scales } = Quantised::new(&values, shape[1]);
                // A row of zeros may have any scale.
                let inverse = |scale: &f32| if *scale > 0.0 { scale.recip() } else { 1.0 };
                let scales: Vec<f32> = scales.iter().map(inverse).collect();
                self.set(name.to_owned(), Variable::Integers(shape.to_vec(), values));
                self.set(format!("{name}_scale"), Variable::Floats(vec![scales.len()], scales.into()));
            }
        }
    }

    fn vector(&mut self, name: String, parameter: &str) -> Result<()> {
        let (shape, values) = self.model.parameter(parameter)?;
        self.set(name, Variable::Floats(shape.to_vec(), values.into()));
        Ok(())
    }

    fn norm(&mut self, name: &str, of: &str) -> Result<()> {
        self.vector(format!("{name}/gamma"), &format!("{of}.weight"))?;
        // Without one, it divides by the root mean square.
        if self.model.config.model.norm_kind == NormKind::Rms {
            return Ok(());
        }
        self.vector(format!("{name}/beta"), &format!("{of}.bias"))
    }

    fn stack(&mut self, of: Stack) -> Result<()> {
        let stack = of.name();
        let config = &self.model.config.model;
        let activation = match config.activation {
            Activation::Relu => 0,
            Activation::GeluTanh => 1,
            Activation::Swish => 2,
            Activation::Gelu => 3,
        };
        self.set(format!("{stack}/activation"), Variable::Byte(activation));
        self.set(format!("{stack}/pre_norm"), Variable::Byte((config.norm == NormPlacement::Pre).into()));
        self.set(format!("{stack}/scale_embeddings"), Variable::Byte(config.scale_embedding.into()));
        self.set(format!("{stack}/num_heads"), Variable::Short(config.heads as i16));
        let positions: Option<Cow<[f32]>> = match config.positions {
            PositionKind::Relative => None,
            PositionKind::Learned => Some(self.model.parameter(&positions_table(of))?.1.into()),
            _ => Some(positions::fixed(config).into()),
        };
        if let Some(positions) = positions {
            let table = Variable::Floats(vec![config.max_length, config.d_model], positions);
            self.set(format!("{stack}/position_encodings/encodings"), table);
        }
        if config.embedding_norm {
            self.norm(&format!("{stack}/layernorm_embedding"), &format!("{stack}.embedding_norm"))?;
        }
        if config.final_norm {
            self.norm(&format!("{stack}/layer_norm"), &format!("{stack}.norm"))?;
        }
        self.embeddings(of)?;
        let layers = if of == Stack::Encoder { config.encoder_layers } else { config.decoder_layers };
        (0..layers).try_for_each(|i| self.layer(of, i))
    }

    fn embeddings(&mut self, stack: Stack) -> Result<()> {
        let tie = self.model.config.model.tie;
        let model = self.model;
        let table = |name: &str| model.parameter(name);
        if stack == Stack::Encoder {
            self.set("encoder/embeddings_merge".to_owned(), Variable::Byte(0));
            self.set("encoder/multi_query_attention".to_owned(), Variable::Byte(0));
            let (shape, values) = table("source_embedding.weight")?;
            self.matrix("encoder/embeddings_0/weight", shape, values.into());
            return Ok(());
        }
        for flag in ["alibi", "alibi_use_positive_positions", "scale_alibi", "start_from_zero_embedding"] {
            self.set(format!("decoder/{flag}"), Variable::Byte(0));
        }
        self.set("decoder/alignment_heads".to_owned(), Variable::Short(1));
        self.set("decoder/alignment_layer".to_owned(), Variable::Short(-1));
        match crate::model::layout::target_table(tie) {
            "source_embedding.weight" => self.alias("decoder/embeddings/weight", "encoder/embeddings_0/weight"),
            name => {
                let (shape, values) = table(name)?;
                self.matrix("decoder/embeddings/weight", shape, values.into());
            }
        }
        match output_table(tie) {
            "source_embedding.weight" => self.alias("decoder/projection/weight", "encoder/embeddings_0/weight"),
            "target_embedding.weight" => self.alias("decoder/projection/weight", "decoder/embeddings/weight"),
            name => {
                let (shape, values) = table(name)?;
                self.matrix("decoder/projection/weight", shape, values.into());
            }
        }
        if self.model.config.model.output_bias {
            self.vector("decoder/projection/bias".to_owned(), "output_projection.bias")?;
        }
        Ok(())
    }

    /// One matrix under two names, with its scales if it has any.
    fn alias(&mut self, name: &'static str, of: &'static str) {
        self.aliases.push((name, of));
    }

    fn layer(&mut self, stack: Stack, i: usize) -> Result<()> {
        let name = stack.name();
        let (to, from) = (format!("{name}/layer_{i}"), format!("{name}.layers.{i}"));
        let part = |attention: &str, part: &str| format!("{from}.{attention}.{part}_proj");
        let all = ["q", "k", "v"].map(|name| part("self_attn", name));
        self.heads(&format!("{to}/self_attention"));
        self.relative_positions(&format!("{to}/self_attention"), stack)?;
        self.linear(&format!("{to}/self_attention/linear_0"), &all)?;
        self.linear(&format!("{to}/self_attention/linear_1"), &[part("self_attn", "out")])?;
        self.norm(&format!("{to}/self_attention/layer_norm"), &format!("{from}.self_attn_norm"))?;
        if stack == Stack::Decoder {
            self.heads(&format!("{to}/attention"));
            self.linear(&format!("{to}/attention/linear_0"), &[part("cross_attn", "q")])?;
            self.linear(&format!("{to}/attention/linear_1"), &["k", "v"].map(|name| part("cross_attn", name)))?;
            self.linear(&format!("{to}/attention/linear_2"), &[part("cross_attn", "out")])?;
            self.norm(&format!("{to}/attention/layer_norm"), &format!("{from}.cross_attn_norm"))?;
        }
        self.linear(&format!("{to}/ffn/linear_0"), &[format!("{from}.feed_forward.fc1")])?;
        if self.model.config.model.gated {
            self.linear(&format!("{to}/ffn/linear_0_noact"), &[format!("{from}.feed_forward.fc3")])?;
        }
        self.linear(&format!("{to}/ffn/linear_1"), &[format!("{from}.feed_forward.fc2")])?;
        self.norm(&format!("{to}/ffn/layer_norm"), &format!("{from}.feed_forward_norm"))
    }

    /// How wide heads are, where they do not share the model's width evenly.
    fn heads(&mut self, attention: &str) {
        let config = &self.model.config.model;
        if uneven_width(config).is_some() {
            self.set(format!("{attention}/head_dim"), Variable::Count(config.d_k as i32));
            let scale = 1.0 / (config.d_k as f32).sqrt();
            self.set(format!("{attention}/queries_scale"), Variable::Floats(Vec::new(), vec![scale].into()));
        }
    }

    /// What attention adds for the distance of two tokens, of each layer.
    fn relative_positions(&mut self, attention: &str, stack: Stack) -> Result<()> {
        let config = &self.model.config.model;
        if config.positions == PositionKind::Relative {
            let distance = Variable::Count(config.relative_distance as i32);
            self.vector(format!("{attention}/relative_attention_bias"), &relative_table(stack))?;
            self.set(format!("{attention}/relative_attention_max_distance"), distance);
        }
        Ok(())
    }

    fn write(&self, path: &Path) -> Result<()> {
        let largest = self.variables.values().map(Variable::bytes).max().unwrap_or(0);
        if u32::try_from(largest).is_err() {
            return Err(Error::failure("CTranslate2's format cannot hold a matrix of 4 GiB").at(path));
        }
        let write = || -> std::io::Result<()> {
            let mut out = BufWriter::new(file::create(path)?);
            out.write_all(&VERSIONS.0.to_le_bytes())?;
            string(&mut out, "TransformerSpec")?;
            out.write_all(&VERSIONS.1.to_le_bytes())?;
            out.write_all(&(self.variables.len() as u32).to_le_bytes())?;
            for (name, variable) in &self.variables {
                string(&mut out, name)?;
                let shape = variable.shape();
                out.write_all(&[shape.len() as u8])?;
                shape.iter().try_for_each(|size| out.write_all(&(*size as u32).to_le_bytes()))?;
                out.write_all(&[variable.kind()])?;
                out.write_all(&(variable.bytes() as u32).to_le_bytes())?;
                variable.write(&mut out)?;
            }
            let scales = if self.quantization == Quantization::Int8 { &["", "_scale"][..] } else { &[""] };
            out.write_all(&((self.aliases.len() * scales.len()) as u32).to_le_bytes())?;
            for (name, of) in &self.aliases {
                for scale in scales {
                    string(&mut out, &format!("{name}{scale}"))?;
                    string(&mut out, &format!("{of}{scale}"))?;
                }
            }
            out.into_inner()?.sync_all()
        };
        write().map_err(|error| write_error(path, error))
    }
}

fn string(out: &mut impl Write, text: &str) -> std::io::Result<()> {
    out.write_all(&(text.len() as u16 + 1).to_le_bytes())?;
    out.write_all(text.as_bytes())?;
    out.write_all(&[0])
}
