//! What trains a model: the number type of its products, the engine for its device, and how that reaches the devices of
//! other ranks.

use std::collections::{BTreeSet, HashMap};
use std::env::consts::ARCH;
#[cfg(feature = "cuda")]
use std::rc::Rc;

use candle_core::{DType, Device};
use serde::{Deserialize, Serialize};

use crate::config::{Config, RuntimeConfig};
use crate::data::batches;
use crate::data::training::TrainingData;
use crate::device;
use crate::device::processor::Processor;
use crate::error::{Error, Result};
use crate::escape::in_one_line;
use crate::gpu::Others;
#[cfg(feature = "cuda")]
use crate::gpu::nccl::{Failed, Nccl};
use crate::gpu::nccl::{Id, Library};
#[cfg(feature = "cuda")]
use crate::gpu::queue::Number;
use crate::model::Transformer;
use crate::model_dir::Tell;
use crate::notice::Notice;
use crate::ops::matmul::Precision;
use crate::ops::optimizer::Counts;
use crate::ops::simd::{self, InstructionSet};
use crate::ranks::Ranks;
use crate::ranks::group::{Gift, Group};
#[cfg(feature = "cuda")]
use crate::train::backend::OnGpu;
use crate::train::backend::{Backend, Tape};
use crate::train::precision::{self, WantedPrecision};
use crate::train::{Session, rehearse};

/// The number type of matrix products in training on this device; says so if it is not the one asked for.
pub fn number_type(wanted: WantedPrecision, device: &Device, tell: Tell<'_>) -> DType {
    let processor = Processor::detect();
    let precision = wanted.on(&processor);
    if wanted == WantedPrecision::Bf16 && device.is_cpu() {
        precision::warning(&processor).into_iter().for_each(|text| tell(Notice::Warning(text)));
    }
    match precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 if !device.is_cpu() || Precision::Bf16.is_native() => DType::BF16,
        Precision::Bf16 => {
            let text = "runtime.precision = \"bf16\", but this processor has no instructions for bfloat16 products: \
                        computing in f32";
            tell(Notice::Note(text.to_owned()));
            DType::F32
        }
    }
}

/// What computes on this device, in words: the kind of the processor with the newest instructions that are used, or the
/// kind of device.
fn machine(device: &Device) -> String {
    match device {
        Device::Cuda(_) => "an NVIDIA GPU".to_owned(),
        Device::Metal(_) => "an Apple GPU".to_owned(),
        Device::Cpu => {
            let Processor { vendor, family, model, .. } = Processor::detect();
            let newest = InstructionSet::ALL.iter().rfind(|set| simd::uses(**set));
            let kind =
                if vendor.is_empty() { ARCH.to_owned() } else { format!("{vendor} family {family} model {model}") };
            newest.map_or(kind.clone(), |set| format!("{kind} with {set}"))
        }
    }
}

/// What computes a run: of several ranks, all kinds of machines among them.
///
/// # Errors
/// Another rank has failed.
pub fn machines(device: &Device, group: Option<&Group>) -> Result<String> {
    let own = machine(device);
    let all = group.map_or(Ok(vec![own.clone()]), |group| group.gather(&own))?;
    let all: BTreeSet<String> = all.into_iter().collect();
    Ok(in_one_line(&Vec::from_iter(all).join(" and ")).into_owned())
}

/// The number type of a run that asks for "auto": that of `before`, the run that goes on, else the fastest on this
/// processor. On other devices it is float32: no run there has shown that bfloat16 gives as good models.
/// `have_bf16`: which ranks have instructions for bfloat16.
pub fn automatic_precision(
    before: Option<WantedPrecision>,
    device: &Device,
    have_bf16: &[bool],
    tell: Tell<'_>,
) -> WantedPrecision {
    let (precision, why) = match before.filter(|before| *before != WantedPrecision::Auto) {
        Some(before) => (before, "the run began with it".to_owned()),
        None if have_bf16.iter().any(|has_bf16| *has_bf16 != have_bf16[0]) => {
            (WantedPrecision::F32, "not all ranks have processors with instructions for bfloat16 products".to_owned())
        }
        None if device.is_cpu() => {
            let (precision, why) = precision::fastest(&Processor::detect());
            (precision.into(), why)
        }
        None => (WantedPrecision::F32, "bf16 is faster on a GPU, but no run there has shown its quality".to_owned()),
    };
    tell(Notice::Info(format!("runtime.precision = \"auto\": {precision}, since {why}")));
    precision
}

/// What ranks need to meet without MPI: see [`Gift`].
pub const GIFT: Option<Gift<'_>> = if cfg!(feature = "cuda") { Some(&gift) } else { None };

fn gift(Ranks { rank, .. }: Ranks) -> Result<Vec<u8>> {
    let library = Library::load()?;
    if rank == 0 { Ok(library.id()?.to_bytes()) } else { Ok(Vec::new()) }
}

/// The device of a rank, as ranks compare it.
#[derive(Deserialize, PartialEq, Serialize)]
enum Kind {
    Cpu,
    Metal,
    /// One of NVIDIA's, by what tells it from all others, and whether NCCL is installed.
    Cuda(String, bool),
}

impl Kind {
    fn gpu(&self) -> Option<(&str, bool)> {
        match self {
            Self::Cuda(identity, has_nccl) => Some((identity, *has_nccl)),
            Self::Cpu | Self::Metal => None,
        }
    }
}

/// Connects the device of this rank with those of the others: GPUs by NCCL, if each rank has its own; otherwise, ranks
/// reach each other from the host.
///
/// # Errors
/// Ranks have devices of different kinds, or ones that cannot be connected.
pub fn connect(group: &Group, device: &Device, config: &RuntimeConfig, tell: Tell<'_>) -> Result<Others> {
    if !group.is_of_mpi() {
        let id = Id::from_bytes(group.watch().gift())?;
        return by_nccl(group, device, config, (Library::load()?, id));
    }
    let library = device.is_cuda().then(Library::load).transpose();
    let has_nccl = library.is_ok();
    if let Err(error) = &library {
        tell(Notice::Warning(error.to_string()));
    }
    let library = library.ok().flatten();
    let own = match device {
        Device::Cpu => Kind::Cpu,
        Device::Metal(_) => Kind::Metal,
        Device::Cuda(_) => Kind::Cuda(identity(device)?, has_nccl),
    };
    let all = group.gather(&own)?;
    let differs = |kind: &Kind| std::mem::discriminant(kind) != std::mem::discriminant(&all[0]);
    if let Some(rank) = all.iter().position(differs) {
        let host = in_one_line(&group.watch().hosts()[rank]);
        let what = format!("rank {rank} on {host} has another kind of device than rank 0");
        return Err(Error::failure(what).help("give all ranks the same --device"));
    }
    let gpus: HashMap<&str, bool> = all.iter().filter_map(Kind::gpu).collect();
    let why = match () {
        () if gpus.is_empty() => return Ok(Others::Host(group.communicator())),
        () if gpus.len() < all.len() => "ranks share a GPU",
        () if gpus.values().any(|has_nccl| !has_nccl) => "not all ranks can load NCCL",
        () => {
            let library = library.ok_or_else(no_gpu)?;
            let id = group.share(group.leads().then(|| library.id().map(Id::to_bytes)).transpose()?)?;
            return by_nccl(group, device, config, (library, Id::from_bytes(&id)?));
        }
    };
    tell(Notice::Warning(format!("gradients go through the host, which is slow: {why}")));
    Ok(Others::Host(group.communicator()))
}

/// What tells a GPU from all others.
fn identity(_device: &Device) -> Result<String> {
    #[cfg(feature = "cuda")]
    return crate::gpu::cuda::Cuda::on(_device)?.identity();
    #[cfg(not(feature = "cuda"))]
    Err(no_gpu())
}

#[cfg(feature = "cuda")]
fn by_nccl(
    group: &Group,
    device: &Device,
    config: &RuntimeConfig,
    (library, id): (&'static Library, Id),
) -> Result<Others> {
    if !device.is_cuda() {
        return Err(no_gpu());
    }
    let (alarm, ranks) = (group.watch().alarm(), (group.ranks(), group.watch().hosts()));
    let on_failure = Box::new(move |failed: &Failed| alarm.raise(&failed.error, failed.is_elsewhere));
    let nccl = Rc::new(Nccl::start(library, id, ranks, crate::gpu::cuda::Cuda::on(device)?, on_failure)?);
    group.connect(nccl.clone());
    Ok(Others::Device(nccl, if config.reduce == Precision::Bf16 { Number::Bf16 } else { Number::F32 }))
}

#[cfg(not(feature = "cuda"))]
fn by_nccl(_: &Group, _: &Device, _: &RuntimeConfig, _: (&'static Library, Id)) -> Result<Others> {
    Err(no_gpu())
}

/// The error of ranks that MPI has not started, without a GPU.
fn no_gpu() -> Error {
    let error = Error::usage("this rank has no GPU, and ranks on processors need MPI");
    error.help("start them with `mpirun` or `srun`, with an mt that is built with `--features mpi`")
}

/// The backend that trains a model on its device, in the model's number type: the engine for GPUs if there is one. With
/// others, it is that of one of several ranks.
pub fn open(model: &Transformer, others: Option<Others>) -> Result<Box<dyn Backend>> {
    #[cfg(feature = "cuda")]
    if model.parameters().device().is_cuda() {
        let (queue, compute) = (crate::gpu::cuda::Cuda::on(model.parameters().device())?, model.parameters().compute());
        let engine = crate::gpu::Engine::new(model, queue, compute)?;
        return Ok(Box::new(OnGpu::new(engine).with_others(others, crate::gpu::PART_BYTES)?));
    }
    Ok(Box::new(Tape::new(model).with_communicator(others.as_ref().map(Others::communicator))))
}

/// Tries the largest batch.
pub(super) fn rehearsal(
    backend: &mut dyn Backend,
    data: &TrainingData,
    config: &Config,
    tell: Tell<'_>,
) -> Result<Session> {
    let largest = batches::largest_batch(data, config.train.batch_tokens);
    let s = if largest.batch_size == 1 { "" } else { "s" };
    let shape = format!("{} pair{s} of {} tokens", largest.batch_size, largest.source_length);
    if backend.ranks().count > 1 {
        // What it needs of the device's memory is taken first.
        backend.begin()?;
        backend.reduce(Counts::default())?;
    }
    let session = rehearse(backend, largest, data.tokenizers.target.pad_id(), &config.train)?;
    if let Some(memory) = device::resident_memory() {
        let mebibytes = memory >> 20;
        tell(Notice::Info(format!("tried the largest batch, {shape}: {mebibytes} MiB of memory in use")));
    }
    Ok(session)
}
