//! `mt embed`

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use indicatif::ProgressBar;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, TensorView};

use super::shared::answered::AnsweredLines;
use super::shared::input::Lines;
use super::shared::languages;
use super::shared::model;
use super::shared::output::{Output, Replacement, refuse_inputs, refuse_unwritable};
use super::shared::tags::{self, Tags};
use crate::cli::{Common, EmbedArgs};
use crate::console::warning;
use crate::decode::encode::Encoder;
use crate::decode::in_halves;
use crate::decode::source::{self, Reader, Source};
use crate::error::{Error, Result};
use crate::model::pooling::Pooling;

/// Writes one vector for each line, in order: as JSON, or all together as the tensor `embeddings` [lines, D].
pub(super) fn run(args: &EmbedArgs, common: &Common) -> Result<()> {
    let pooling = Pooling::from_flag("--pool", &args.pool)?;
    if args.batch_tokens == Some(0) {
        return Err(Error::usage("--batch-tokens must be at least 1"));
    }
    let mut loaded = model::load(&args.model, common)?;
    let tag = languages::choose(&args.languages, args.tag.as_deref(), [&mut loaded])?;
    let tag = tag.as_deref();
    let (encoder, reader) = (Encoder::new(loaded.transformer()?)?, loaded.reader());
    tags::check_flag(tag, &loaded.tokenizers.source)?;
    let batch_tokens = args.batch_tokens.unwrap_or(loaded.config.decode.batch_tokens);
    let mut lines = Lines::open(&args.text, args.input.as_deref(), tag)?;
    let of_model = loaded.files();
    refuse_inputs(args.output.as_deref(), lines.path().into_iter().chain(of_model.iter().map(PathBuf::as_path)))?;
    let is_tensor = |path: &&Path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"));
    let other = args.output.as_deref().and_then(Path::extension).and_then(|extension| extension.to_str());
    if let Some(extension) = other.filter(|extension| ["npy", "npz", "pt", "pth", "h5", "parquet"].contains(extension))
    {
        let error =
            Error::usage(format!("vectors are written as JSON, or all together as a tensor, not as .{extension}"));
        return Err(error.help("name a file .jsonl or .safetensors"));
    }
    let tensor_file = args.output.as_deref().filter(is_tensor);
    // Opening the output file empties it, so make sure first that the input can be read. A tensor file is written only
    // at the end.
    let mut window = lines.next()?;
    let mut output = match tensor_file {
        Some(path) => refuse_unwritable(path).map(|()| None)?,
        None => Some(Output::open(args.output.as_deref())?),
    };
    let written = match tensor_file.is_some() || lines.is_interactive() {
        true => AnsweredLines::default(),
        false => AnsweredLines::watch(args.output.as_deref(), ProgressBar::hidden())?,
    };
    // The vectors of each window of lines, [lines, D].
    let mut all: Vec<Tensor> = Vec::new();
    let (mut count, mut cut, mut tags) = (0, Vec::new(), Tags::new(&loaded, tag));
    let mut refused = None;
    while !window.is_empty() && !output.as_ref().is_some_and(Output::is_closed) {
        if let Some(index) = window.iter().position(|line| reader.lacks_language(line)) {
            let error = Error::failure("the model has many languages, and the line's is not known");
            let error = error.at_line(lines.name(), lines.first() + index, 0);
            return Err(error.help("give --from LANGUAGE (`mt info MODEL` lists them)"));
        }
        let (vectors, are_cut) = embed(&encoder, &reader, &window, pooling, batch_tokens)?;
        cut.extend(are_cut.into_iter().map(|line| count + line + 1));
        count += vectors.len();
        window.iter().for_each(|line| tags.count(line));
        match &mut output {
            None => all.extend(stacked(vectors)?),
            Some(output) => {
                let result = written.write(vectors.len(), || {
                    vectors.iter().try_for_each(|vector| output.json(&serde_json::json!(vector)))?;
                    let shortened = cut_warning(&cut, count, lines.name());
                    written.note([lines.warnings(), tags.warnings(), shortened.into_iter().collect()].concat());
                    output.flush()
                });
                result.map_err(|error| written.how_far(error, output.cut_back()))?;
            }
        }
        window = lines.next().unwrap_or_else(|error| {
            refused = Some(error);
            Vec::new()
        });
    }
    if let Some(path) = tensor_file {
        let mut file = Replacement::open(path)?;
        file.output().bytes(&file_of(all, loaded.config.model.d_model)?)?;
        file.finish()?;
    }
    lines.warnings().into_iter().for_each(warning);
    tags.warnings().into_iter().for_each(warning);
    cut_warning(&cut, count, lines.name()).into_iter().for_each(warning);
    refused.map_or(Ok(()), Err)
}

/// A warning about lines that were cut, out of `all` lines of an input.
fn cut_warning(cut: &[usize], all: usize, name: &Path) -> Option<String> {
    /// The most that are named.
    const MOST: usize = 20;
    let lines_are = match (cut.len(), all) {
        (0, _) => return None,
        (_, 1) => "the line is".to_owned(),
        (1, _) => format!("1 of {all} lines is"),
        (n, _) => format!("{n} of {all} lines are"),
    };
    let locations: String = cut.iter().take(MOST).map(|line| format!("\n  --> {}:{line}", name.display())).collect();
    let more = if cut.len() > MOST { format!("\n  and {} more", cut.len() - MOST) } else { String::new() };
    Some(format!("{lines_are} longer than model.max_length: only the beginning was used{locations}{more}"))
}

/// Vectors of lines, in order, and the indices of the lines that were cut.
fn embed(
    encoder: &Encoder,
    reader: &Reader,
    lines: &[String],
    pooling: Pooling,
    batch_tokens: usize,
) -> Result<(Vec<Vec<f32>>, Vec<usize>)> {
    let mut sources = reader.read(lines);
    let cut = sources.iter().filter(|source| source.cut).map(|source| source.line).collect();
    let tokens = |source: &source::Source| source.ids.len();
    source::by_length(&mut sources, tokens);
    let mut vectors = vec![Vec::new(); lines.len()];
    let vectors_of = |batch: &[Source]| encoder.vectors(&reader.sequences(batch), pooling);
    for batch in source::batches(&sources, tokens, batch_tokens, usize::MAX) {
        for (source, vector) in batch.iter().zip(in_halves(batch, &vectors_of)?) {
            vectors[source.line] = vector;
        }
    }
    Ok((vectors, cut))
}

/// Vectors of D numbers as one tensor [vectors, D]; nothing if there are none.
fn stacked(vectors: Vec<Vec<f32>>) -> Result<Option<Tensor>> {
    if vectors.is_empty() {
        return Ok(None);
    }
    let count = vectors.len();
    let rows = vectors.into_iter().map(|vector| Tensor::new(vector, &Device::Cpu));
    #[cfg(feature = "hub")]
    return Ok(candle_datasets::Batcher::new_r1(rows).batch_size(count).next().transpose()?);
    // candle-datasets brings the client of the hub with it.
    #[cfg(not(feature = "hub"))]
    return Ok(Some(Tensor::stack(&rows.take(count).collect::<candle_core::Result<Vec<_>>>()?, 0)?));
}

/// The tensor `embeddings` [lines, D], made of batches [n, D], as a safetensors file.
fn file_of(batches: Vec<Tensor>, d: usize) -> Result<Vec<u8>> {
    let failed = |error: SafeTensorError| Error::failure("the vectors cannot be written as a tensor").caused_by(error);
    let lines: usize = batches.iter().map(|batch| batch.dim(0)).sum::<candle_core::Result<_>>()?;
    let mut floats: Vec<u8> = Vec::with_capacity(lines * d * size_of::<f32>());
    // One batch after the other is dropped: all vectors are in memory twice at most.
    for batch in batches {
        floats.extend(batch.flatten_all()?.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes));
    }
    let whole = TensorView::new(Dtype::F32, vec![lines, d], &floats).map_err(failed)?;
    safetensors::serialize([("embeddings", whole)], None).map_err(failed)
}
