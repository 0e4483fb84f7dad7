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
//! Each module uses only those before it in this list, from the bottom to the top:
//!
//! - used by all: `limits`, [`rng`], `key` (the kinds of values of configuration keys), `signature` (detects what a
//!   file is), [`explanation`], [`escape`] (text of others in messages), [`notice`], [`console`], `file`, [`error`],
//!   `foreign` (panics of libraries), `choice` (enumerations with names in a configuration), [`allocator`]
//! - what stands on its own: [`metrics`], [`device`], [`hub`], [`ranks`] (processes that train together)
//! - the model: [`ops`] (kernels, parameters), [`model`]; text: [`data`]; both on disk: [`checkpoint`]
//! - translation: [`infer`] (on the processor), [`gpu`] (on NVIDIA's), [`decode`] (search); training: [`train`]
//! - [`config`], which is made of the sections that the modules below define, each its own
//! - [`interop`] (models of other programs), [`comet`] (neural metrics), [`report`] (pages and pictures)
//! - on disk: [`model_dir`] (models, also of the hub), [`synthetic`] (training text made by models), [`run`] (training
//!   runs); [`starter`] (first configurations)
//! - the program: [`cli`], [`commands`]
//!
//! `tests/layers.rs` has the same list, and checks every use of one module by another.

#[cfg(not(unix))]
compile_error!("mt needs Linux or another Unix system");

pub mod allocator;
pub mod checkpoint;
mod choice;
pub mod cli;
pub mod comet;
pub mod commands;
pub mod config;
pub mod console;
pub mod data;
pub mod decode;
pub mod device;
pub mod error;
pub mod escape;
pub mod explanation;
mod file;
mod foreign;
pub mod gpu;
pub mod hub;
pub mod infer;
pub mod interop;
mod key;
mod limits;
pub mod metrics;
pub mod model;
pub mod model_dir;
pub mod notice;
pub mod ops;
pub mod ranks;
pub mod report;
pub mod rng;
pub mod run;
mod signature;
pub mod starter;
pub mod synthetic;
pub mod train;
