//! `mt`: train, evaluate and run Transformer machine-translation models.
//!
//! # Data flow
//!
//! ```text
//! text ── data::corpus ── data::tokenizer ── data::sampler ── data::batch ── data::prefetch
//!                                                                                │
//!                 ops (kernels, parameters) ── model (Transformer) ── train (the loop) ── checkpoint
//!                                                  │                        └── report (its log as pages and pictures)
//!       infer (on the processor), gpu (on NVIDIA's) ── decode (search, translate) ── metrics (BLEU, chrF, TER)
//! ```
//!
//! Text is files, or a data set of the Hugging Face hub: [`hub`] fetches, `data::hub` reads.
//!
//! # Modules
//!
//! Dependencies point one way: `main → commands → {interop, report} → {config, train, decode, metrics, checkpoint} → {infer, gpu} → {model, data} →
//! {ops, hub, device} → rng`. Beside them, [`cli`] is what [`commands`] and `main` read the command line with, and imports nothing of ours; [`metrics`], [`hub`], [`device`] and
//! [`rng`] import nothing of ours but [`error`], [`console`], `file` and `choice`. What a configuration may say of a thing
//! (its names, `choice`; its keys, `key`, which import nothing either) stands in the module that implements it; [`config`] composes the sections of these, and what it makes of them,
//! plain structs, is what every module may take. So is an [`explanation`], which [`decode`] makes, [`train`] passes on and [`report`] draws.

pub mod allocator;
pub mod checkpoint;
mod choice;
pub mod cli;
pub mod commands;
pub mod config;
pub mod console;
pub mod data;
pub mod decode;
pub mod device;
pub mod error;
pub mod explanation;
mod file;
pub mod gpu;
pub mod hub;
pub mod infer;
pub mod interop;
mod key;
pub mod metrics;
pub mod model;
pub mod ops;
pub mod report;
pub mod rng;
pub mod train;
