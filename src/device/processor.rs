//! What this machine's processor is: for `mt info --machine`.

use std::fs;
use std::path::Path;

/// A processor, as it names itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// Such as "AMD EPYC 9R14"; empty if it is not known.
    pub name: String,
    /// Who made it: "AuthenticAMD", "GenuineIntel"; empty on other architectures.
    pub vendor: String,
    /// With the model, the number of its microarchitecture; 0 on other architectures.
    pub family: u32,
    /// See there.
    pub model: u32,
}

impl Processor {
    /// That of this machine.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::__cpuid;
            let text = |registers: &[u32]| {
                let bytes: Vec<u8> = registers.iter().flat_map(|register| register.to_le_bytes()).collect();
                String::from_utf8_lossy(&bytes).trim_matches(['\0', ' ']).to_owned()
            };
            let (first, signature) = (__cpuid(0), __cpuid(1).eax);
            let brand = || (0x8000_0002..=0x8000_0004).map(__cpuid).flat_map(|it| [it.eax, it.ebx, it.ecx, it.edx]);
            let has_brand = __cpuid(0x8000_0000).eax >= 0x8000_0004;
            let (family, model) = numbers(signature);
            Self {
                name: if has_brand { text(&brand().collect::<Vec<_>>()) } else { String::new() },
                vendor: text(&[first.ebx, first.edx, first.ecx]),
                family,
                model,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::default()
    }
}

/// Family and model in the signature that CPUID gives (AMD64 Architecture Programmer's Manual, volume 3, appendix E;
/// the same for Intel's).
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn numbers(signature: u32) -> (u32, u32) {
    let part = |low: u32, bits: u32| signature >> low & ((1 << bits) - 1);
    let (family, model) = (part(8, 4), part(4, 4));
    let model = if family == 6 || family == 15 { model + (part(16, 4) << 4) } else { model };
    (if family == 15 { family + part(20, 8) } else { family }, model)
}

/// A cache of the first core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 is the nearest.
    pub level: u32,
    /// "data", "instruction" or "unified".
    pub kind: String,
    /// Its size.
    pub bytes: u64,
}

/// The caches of the first core, as Linux tells them; none elsewhere.
pub fn caches() -> Vec<Cache> {
    caches_in(Path::new("/sys/devices/system/cpu/cpu0/cache"))
}

fn caches_in(folder: &Path) -> Vec<Cache> {
    let cache = |index: u32| {
        let read = |name: &str| fs::read_to_string(folder.join(format!("index{index}")).join(name)).ok();
        let (level, kind, size) = (read("level")?, read("type")?, read("size")?);
        let (number, unit) = size.trim().split_at(size.trim().find(|c: char| !c.is_ascii_digit())?);
        let unit = match unit {
            "K" => 1 << 10,
            "M" => 1 << 20,
            _ => return None,
        };
        let bytes = number.parse::<u64>().ok()?.checked_mul(unit)?;
        Some(Cache { level: level.trim().parse().ok()?, kind: kind.trim().to_lowercase(), bytes })
    };
    (0..16).map_while(cache).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_name_families_and_models() {
        // Zen 4 (server), Zen 3 (server), Sapphire Rapids, Pentium.
        for (signature, found) in
            [(0x00a1_0f11, (25, 17)), (0x00a0_0f11, (25, 1)), (0x000c_06f2, (6, 207)), (0x0000_0543, (5, 4))]
        {
            assert_eq!(numbers(signature), found, "{signature:x}");
        }
    }

    #[test]
    fn caches_are_read_until_the_first_that_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        for (index, level, kind, size) in [(0, "1\n", "Data\n", "32K\n"), (1, "3\n", "Unified\n", "33M\n")] {
            let of_one = folder.path().join(format!("index{index}"));
            fs::create_dir(&of_one).unwrap();
            for (name, text) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(of_one.join(name), text).unwrap();
            }
        }
        let cache = |level, kind: &str, bytes| Cache { level, kind: kind.to_owned(), bytes };
        assert_eq!(caches_in(folder.path()), [cache(1, "data", 32 << 10), cache(3, "unified", 33 << 20)]);
        assert_eq!(caches_in(&folder.path().join("nowhere")), []);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn this_processor_has_a_vendor() {
        let Processor { vendor, family, .. } = Processor::detect();
        assert!(vendor.len() == 12 && family > 0, "{vendor} {family}");
    }
}
