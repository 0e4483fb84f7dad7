//! `mt info --machine`: what this machine has, and what `auto` chooses on it.

use serde_json::{Value, json};

use crate::cli::Common;
use crate::commands::shared::output::{print, print_json};
use crate::device::processor::{Cache, Processor, caches};
use crate::device::{gpus, machine_memory};
use crate::error::Result;
use crate::infer::ComputeType;
use crate::ops::matmul::{Precision, int8};
use crate::ops::simd::{self, InstructionSet};
use crate::train::precision;

/// Describes this machine.
pub(super) fn run(common: &Common) -> Result<()> {
    let (processor, caches, memory) = (Processor::detect(), caches(), machine_memory());
    let sets: Vec<String> =
        InstructionSet::ALL.iter().filter(|set| simd::uses(**set)).map(ToString::to_string).collect();
    // Not all that the processor has: its results must be right, too.
    let by_amx = [("bf16", Precision::Bf16.is_by_amx()), ("int8", int8::is_by_amx())];
    let by_amx: Vec<&str> = by_amx.into_iter().filter_map(|(name, is_so)| is_so.then_some(name)).collect();
    let limit = std::env::var(simd::LIMIT).ok();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (gpus, translation) = (gpus().unwrap_or(0), ComputeType::fastest());
    let (training, why) = precision::fastest(&processor);
    if common.json {
        let cache = |Cache { level, kind, bytes }: &Cache| json!({ "level": level, "kind": kind, "bytes": bytes });
        let Processor { name, vendor, family, model } = &processor;
        return print_json(&json!({
            "processor": { "name": name, "vendor": vendor, "family": family, "model": model },
            "instructions": sets, "limit": limit, "by_amx": by_amx, "cores": cores,
            "caches": caches.iter().map(cache).collect::<Vec<Value>>(), "memory_bytes": memory, "gpus": gpus,
            "auto": { "translate": translation.to_string(), "train": training.to_string(), "why": why },
        }));
    }
    let Processor { name, vendor, family, model } = processor;
    let numbers = if vendor.is_empty() { String::new() } else { format!("{vendor}, family {family}, model {model}") };
    let processor = match (name.is_empty(), numbers.is_empty()) {
        (false, false) => format!("{name} ({numbers})"),
        _ => name + &numbers,
    };
    let limited = limit.map(|limit| format!(" (not beyond {limit}: {} is set)", simd::LIMIT)).unwrap_or_default();
    let cache = |Cache { level, kind, bytes }: &Cache| format!("level {level} {kind} {} KiB", bytes >> 10);
    let caches = caches.iter().map(cache).collect::<Vec<_>>().join(", ");
    let memory = memory.map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
    let unknown = || "not known".to_owned();
    let or_unknown = |text: String| if text.is_empty() { unknown() } else { text };
    let amx = if by_amx.is_empty() { "nothing".to_owned() } else { by_amx.join(", ") };
    let lines = [
        ("processor", or_unknown(processor)),
        ("instructions", sets.join(", ") + &limited),
        ("AMX multiplies", amx),
        ("cores", cores.to_string()),
        ("caches", or_unknown(caches)),
        ("memory", memory.unwrap_or_else(unknown)),
        ("NVIDIA GPUs", gpus.to_string()),
        ("auto", format!("translates in {translation}, trains in {training}: {why}")),
    ];
    print(lines.map(|(name, text)| format!("{name:<16}{text}")).join("\n"))
}
