//! `mt train --profile`: where the time of a run's updates went, and how near that is to what the machine can do.

use std::fmt;
use std::time::Instant;

use serde_json::{Value, json};

use super::backend::{Backend, Ceilings};
use crate::error::Result;
use crate::ops::matmul::{self, Precision};
use crate::ops::memory;
use crate::ops::profile::{self, Entry, Level, Work};

/// Updates that are not counted: the first ones allocate.
const WARMUP: u64 = 3;

/// Counts time and work, from a few updates after the start.
#[derive(Debug, Default)]
pub struct Profiler {
    seen: u64,
    started: Option<Instant>,
    /// What was counted, and in how many seconds.
    counted: Option<(f64, Vec<Entry>)>,
}

impl Profiler {
    /// To be called after every update.
    pub fn updated(&mut self) {
        self.seen += 1;
        if self.seen == WARMUP {
            profile::enable(true);
            self.started = Some(Instant::now());
        }
    }

    /// Whether counting begins after so many more updates: until then nothing is to be queued behind them.
    pub fn begins_after(&self, updates: usize) -> bool {
        self.seen + updates as u64 == WARMUP
    }

    /// Ends counting.
    pub fn stop(&mut self, backend: &mut dyn Backend) -> Result<()> {
        let Some(started) = self.started else { return Ok(()) };
        // Waits for the device: what it is still doing counts.
        backend.sums()?;
        self.counted = Some((started.elapsed().as_secs_f64(), profile::entries()));
        profile::enable(false);
        Ok(())
    }

    /// Ends counting, unless [`Self::stop`] has, and measures the machine, or the backend's device; `None` if there was
    /// nothing to count.
    pub fn finish(mut self, backend: &mut dyn Backend) -> Result<Option<Profile>> {
        if self.counted.is_none() {
            self.stop(backend)?;
        }
        let Some((seconds, entries)) = self.counted else { return Ok(None) };
        let updates = self.seen - WARMUP;
        if updates == 0 {
            return Ok(None);
        }
        let machine = match backend.ceilings()? {
            Some(device) => device.into(),
            None => Machine::measure(),
        };
        Ok(Some(Profile { updates, seconds, entries, machine }))
    }
}

/// What the machine can do.
#[derive(Clone, Copy, Debug)]
struct Machine {
    threads: usize,
    /// Floating-point operations a second and thread, float32.
    f32: f64,
    /// The same with bfloat16 operands, where there are instructions for it.
    bf16: Option<f64>,
    /// Bytes a second, all threads together.
    memory: f64,
    /// Whether it is a GPU.
    is_device: bool,
}

impl From<Ceilings> for Machine {
    fn from(Ceilings { f32, bf16, memory }: Ceilings) -> Self {
        Self { threads: 1, f32, bf16: Some(bf16), memory, is_device: true }
    }
}

impl Machine {
    fn measure() -> Self {
        Self {
            threads: rayon::current_num_threads(),
            f32: matmul::peak(Precision::F32),
            bf16: Precision::Bf16.is_native().then(|| matmul::peak(Precision::Bf16)),
            memory: memory::bandwidth(),
            is_device: false,
        }
    }

    /// The least time that this work takes one thread, in seconds.
    fn least(&self, work: &Work) -> f64 {
        let bf16 = work.flops_bf16 as f64 / self.bf16.unwrap_or(self.f32);
        work.flops as f64 / self.f32 + bf16 + work.bytes as f64 / (self.memory / self.threads as f64)
    }
}

/// Where the time went.
#[derive(Debug)]
pub struct Profile {
    updates: u64,
    seconds: f64,
    entries: Vec<Entry>,
    machine: Machine,
}

/// One line of the table.
struct Line {
    name: String,
    /// Calls per update.
    calls: f64,
    /// Per update.
    milliseconds: f64,
    /// Share of the loop's time; for a kernel, of the time of all threads.
    share: f64,
    /// Billions a second, and the unit.
    rate: Option<(f64, &'static str)>,
    /// Share of what the machine can do.
    ceiling: Option<f64>,
}

impl Profile {
    /// Names of operations that ran as their plain reference: there should be none on a processor.
    pub fn references(&self) -> Vec<&'static str> {
        self.entries.iter().filter(|e| e.level == Level::Reference).map(|e| e.name).collect()
    }

    /// The least time of an update on a device, in seconds, where work that was timed runs one after the other: its
    /// arithmetic and its bytes at the measured rates. `None` on a processor.
    pub fn floor(&self) -> Option<f64> {
        let counted = self.entries.iter().filter(|entry| entry.level == Level::Operation);
        let least: f64 = counted.map(|entry| self.machine.least(&entry.work)).sum();
        self.machine.is_device.then_some(least / self.updates as f64)
    }

    fn line(&self, entry: &Entry) -> Line {
        let (seconds, updates) = (entry.time.as_secs_f64(), self.updates as f64);
        // An operation uses all threads, a kernel only one, so its share is of the time of all.
        let (spent, whole) = match entry.level {
            Level::Kernel => (seconds, self.seconds * self.machine.threads as f64),
            _ => (seconds * self.machine.threads as f64, self.seconds),
        };
        let flops = entry.work.flops + entry.work.flops_bf16;
        let (amount, unit) = if flops > 0 { (flops, "GFLOP/s") } else { (entry.work.bytes, "GB/s") };
        let counted = amount > 0 && seconds > 0.0;
        let part = if entry.part.is_empty() { String::new() } else { format!(", {}", entry.part) };
        let plain = if entry.level == Level::Reference { " (plain operations)" } else { "" };
        Line {
            name: format!("{}{part}{plain}", entry.name),
            calls: entry.calls as f64 / updates,
            milliseconds: 1e3 * seconds / updates,
            share: seconds / whole,
            rate: counted.then(|| (amount as f64 / seconds / 1e9, unit)),
            ceiling: counted.then(|| self.machine.least(&entry.work) / spent),
        }
    }

    /// The lines of some levels, longest first.
    fn lines(&self, levels: &[Level]) -> Vec<Line> {
        let mut entries: Vec<&Entry> = self.entries.iter().filter(|e| levels.contains(&e.level)).collect();
        entries.sort_by_key(|e| std::cmp::Reverse(e.time));
        entries.into_iter().map(|e| self.line(e)).collect()
    }

    /// The phases, then the time outside them.
    fn phases(&self) -> Vec<Line> {
        let mut lines = self.lines(&[Level::Phase]);
        let share = 1.0 - lines.iter().map(|line| line.share).sum::<f64>();
        let milliseconds = 1e3 * self.seconds * share / self.updates as f64;
        lines.push(Line { name: "anything else".into(), calls: 1.0, milliseconds, share, rate: None, ceiling: None });
        lines
    }

    /// Everything, for `--json`.
    pub fn json(&self) -> Value {
        let lines = |lines: Vec<Line>| -> Vec<Value> {
            let line = |line: Line| {
                json!({
                    "name": line.name, "calls": line.calls, "milliseconds": line.milliseconds, "share": line.share,
                    "rate": line.rate.map(|(rate, _)| rate * 1e9), "unit": line.rate.map(|(_, unit)| &unit[1..]),
                    "of_ceiling": line.ceiling,
                })
            };
            lines.into_iter().map(line).collect()
        };
        json!({
            "updates": self.updates,
            "seconds": self.seconds,
            "machine": {
                "threads": self.machine.threads, "f32_flops_per_thread": self.machine.f32,
                "bf16_flops_per_thread": self.machine.bf16, "memory_bytes": self.machine.memory,
            },
            "phases": lines(self.phases()),
            "operations": lines(self.lines(&[Level::Operation, Level::Reference])),
            "kernels": lines(self.lines(&[Level::Kernel])),
        })
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let machine = &self.machine;
        let bf16 = machine.bf16.map(|peak| format!(", {:.0} in bfloat16", peak / 1e9)).unwrap_or_default();
        let who = if machine.is_device {
            "this GPU".to_owned()
        } else {
            format!("this machine, {} threads", machine.threads)
        };
        writeln!(
            f,
            "profile of {} updates in {:.1} s; measured now: {who} of {:.0} GFLOP/s{bf16}; memory {:.1} GB/s",
            self.updates,
            self.seconds,
            machine.f32 / 1e9,
            machine.memory / 1e9
        )?;
        if let Some(floor) = self.floor() {
            let took = self.seconds / self.updates as f64;
            writeln!(
                f,
                "an update took {:.2} ms with the clocks of this profile, at the least {:.2} ms: {:.2} times the floor",
                1e3 * took,
                1e3 * floor,
                took / floor
            )?;
        }
        for (title, share, lines) in [
            ("part of the loop", "share", self.phases()),
            ("operation", "share", self.lines(&[Level::Operation, Level::Reference])),
            ("kernel (time of all threads)", "share", self.lines(&[Level::Kernel])),
        ] {
            writeln!(f, "\n{title:<38} {:>8} {:>10} {share:>7} {:>13} {:>11}", "calls", "ms", "rate", "of ceiling")?;
            for line in lines {
                let rate = line.rate.map(|(rate, unit)| format!("{rate:.1} {unit}")).unwrap_or_default();
                let ceiling = line.ceiling.map(|share| format!("{:.0} %", 100.0 * share)).unwrap_or_default();
                writeln!(
                    f,
                    "{:<38} {:>8.1} {:>10.2} {:>5.1} % {rate:>13} {ceiling:>11}",
                    line.name,
                    line.calls,
                    line.milliseconds,
                    100.0 * line.share
                )?;
            }
        }
        write!(f, "\nCalls and milliseconds are an update's. Bytes that a cache holds can pass memory's ceiling.")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn shares_and_rates() {
        let entry = |level, name, milliseconds, work| Entry {
            level,
            name,
            part: "forward",
            calls: 20,
            time: Duration::from_millis(milliseconds),
            work,
        };
        let profile = Profile {
            updates: 10,
            seconds: 1.0,
            entries: vec![
                entry(Level::Phase, "forward", 750, Work::NONE),
                entry(Level::Operation, "attention", 500, Work { flops: 50_000_000_000, ..Work::NONE }),
                entry(Level::Kernel, "softmax", 500, Work { bytes: 1_000_000_000, ..Work::NONE }),
            ],
            machine: Machine { threads: 2, f32: 100e9, bf16: None, memory: 20e9, is_device: false },
        };
        let phases = profile.phases();
        assert_eq!((phases[0].calls, phases[0].milliseconds, phases[0].share), (2.0, 75.0, 0.75));
        assert_eq!((phases[1].milliseconds, phases[1].share), (25.0, 0.25));
        // 50 GFLOP in 0.5 s on two threads of 100 GFLOP/s.
        let operation = &profile.lines(&[Level::Operation])[0];
        assert_eq!((operation.rate, operation.ceiling), (Some((100.0, "GFLOP/s")), Some(0.5)));
        // 1 GB in 0.5 s of one of two threads that share 20 GB/s.
        let kernel = &profile.lines(&[Level::Kernel])[0];
        assert_eq!((kernel.share, kernel.rate, kernel.ceiling), (0.25, Some((2.0, "GB/s")), Some(0.2)));
        assert!(profile.references().is_empty());
    }
}
