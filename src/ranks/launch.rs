//! Which rank this process is, as the program that started it says in environment variables.

use std::ffi::OsString;

use super::Ranks;
use crate::error::{Error, Result};

/// The variable that `mt train --devices` gives its processes: a name that no other launch has.
const LAUNCH: &str = "MT_LAUNCH";

/// What started the processes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `mt train --devices`.
    Own,
    /// `torchrun`, or another that sets PyTorch's variables.
    Torch,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH, Intel MPI and others whose processes have PMI's variables.
    Pmi,
    /// `srun` of Slurm.
    Slurm,
}

impl Launcher {
    /// Its command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "mt train --devices",
            Self::Torch => "torchrun",
            Self::OpenMpi => "mpirun",
            Self::Pmi => "mpiexec",
            Self::Slurm => "srun",
        }
    }

    /// The variables that give a process's rank and the number of ranks.
    fn variables(self) -> [&'static str; 2] {
        match self {
            Self::Own | Self::Torch => ["RANK", "WORLD_SIZE"],
            Self::OpenMpi => ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
            Self::Pmi => ["PMI_RANK", "PMI_SIZE"],
            // Not SLURM_NTASKS: that is also set in the script of a job, which is one process.
            Self::Slurm => ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"],
        }
    }

    /// Whether MPI knows these ranks, if it is compiled in.
    pub fn is_of_mpi(self) -> bool {
        !matches!(self, Self::Own | Self::Torch)
    }
}

/// The place of this process among those that were started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// What started it.
    pub launcher: Launcher,
    /// Which rank it is, and of how many; more than one.
    pub ranks: Ranks,
    /// Where rank 0 can be reached (host and port), if the environment says it.
    pub address: Option<(String, u16)>,
    /// Whether all its processes are on this machine, as far as the environment says it.
    pub is_local: bool,
    /// What is the same in all processes of this launch, and usually in no other.
    pub name: String,
}

impl Launch {
    /// Whether `mt train --devices` has started this process.
    pub fn is_own(&self) -> bool {
        self.launcher == Launcher::Own
    }
}

/// The variables of one of the processes that `mt train --devices` starts. `port` is one of this machine, and `name`
/// one that no other launch has.
pub fn variables_of(Ranks { rank, count }: Ranks, port: u16, name: &str) -> [(&'static str, String); 6] {
    [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", count.to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("MASTER_PORT", port.to_string()),
        (LAUNCH, name.to_owned()),
    ]
}

/// The environment: the value of a variable.
type Get<'a> = &'a dyn Fn(&str) -> Option<OsString>;

impl Launch {
    /// Reads the environment; `None` if this process is alone.
    ///
    /// # Errors
    /// A variable has a value that it cannot have.
    pub fn find() -> Result<Option<Self>> {
        Self::in_environment(&|name| std::env::var_os(name))
    }

    fn in_environment(get: Get<'_>) -> Result<Option<Self>> {
        // The innermost first: `srun` may start `torchrun`, and a Slurm job `mpirun`.
        for launcher in [Launcher::Torch, Launcher::OpenMpi, Launcher::Pmi, Launcher::Slurm] {
            let [rank, count] = launcher.variables();
            if get(rank).is_none() || get(count).is_none() {
                continue;
            }
            let ranks = Ranks { rank: number(get, rank)?, count: number(get, count)? };
            if ranks.rank >= ranks.count {
                let what = format!("{rank}={} is no rank of {count}={}", ranks.rank, ranks.count);
                return Err(Error::usage(what).help(format!("unset both, unless {} sets them", launcher.name())));
            }
            // Slurm's PMI-2 gives each task these numbers, too.
            let same = |own, of_slurm| get(of_slurm).is_some() && get(own) == get(of_slurm);
            let [slurm_rank, slurm_count] = Launcher::Slurm.variables();
            let is_of_slurm = launcher == Launcher::Pmi && same(rank, slurm_rank) && same(count, slurm_count);
            if ranks.count == 1 || is_of_slurm {
                continue;
            }
            let is_own = launcher == Launcher::Torch && text(get, LAUNCH).is_some();
            let launcher = if is_own { Launcher::Own } else { launcher };
            let (address, name) = (address(launcher, get)?, name(launcher, get));
            let is_local = is_own || get("LOCAL_WORLD_SIZE").is_some_and(|local| Some(local) == get(count));
            return Ok(Some(Self { launcher, ranks, address, is_local, name }));
        }
        Ok(None)
    }
}

fn text(get: Get<'_>, name: &str) -> Option<String> {
    get(name).and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty())
}

fn number(get: Get<'_>, name: &str) -> Result<usize> {
    let value = get(name).unwrap_or_default();
    let number = value.to_str().and_then(|value| value.parse().ok());
    number.ok_or_else(|| {
        let value = value.to_string_lossy();
        Error::usage(format!("invalid value `{}` for the variable {name}", crate::escape::harmless(&value)))
            .help("it must be a whole number: unset it, or correct it")
    })
}

/// Where rank 0 listens.
fn address(launcher: Launcher, get: Get<'_>) -> Result<Option<(String, u16)>> {
    let host = text(get, "MASTER_ADDR");
    let port = match get("MASTER_PORT") {
        // Without an address, only Slurm's ranks need it.
        Some(_) if host.is_some() || launcher == Launcher::Slurm => {
            let port = u16::try_from(number(get, "MASTER_PORT")?).ok().filter(|port| *port > 0);
            Some(port.ok_or_else(|| {
                Error::usage("MASTER_PORT is no port").help("ports go from 1 to 65535: set the variable to a free one")
            })?)
        }
        _ => None,
    };
    if let (Some(host), Some(port)) = (host.clone(), port) {
        // On MASTER_PORT itself, torchrun's agent listens.
        let has_agent = launcher == Launcher::Torch && text(get, "TORCHELASTIC_RUN_ID").is_some();
        let port = if has_agent { next_port(port) } else { port };
        return Ok(Some((host, port)));
    }
    if launcher == Launcher::Slurm {
        let nodes = text(get, "SLURM_STEP_NODELIST").or_else(|| text(get, "SLURM_JOB_NODELIST"));
        let job = |name| text(get, name).and_then(|id| id.parse::<u64>().ok()).unwrap_or_default();
        // Two jobs that share a node should not meet.
        let of_job = 20_000 + (job("SLURM_JOB_ID") * 7 + job("SLURM_STEP_ID")) % 10_000;
        let port = port.unwrap_or(u16::try_from(of_job).unwrap_or(u16::MAX));
        return Ok(host.or_else(|| nodes.as_deref().map(first_node)).map(|host| (host, port)));
    }
    Ok(None)
}

fn next_port(port: u16) -> u16 {
    port.checked_add(1).unwrap_or(port - 1)
}

/// The first host of a list in Slurm's form, such as `gpu[03-05,9],login`.
fn first_node(list: &str) -> String {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let Some(numbers) = rest.strip_prefix('[') else { return prefix.to_owned() };
    let first = numbers.split([',', '-', ']']).next().unwrap_or_default();
    // What follows the brackets belongs to each host.
    let suffix = numbers.split_once(']').map_or("", |(_, rest)| rest.split(',').next().unwrap_or_default());
    format!("{prefix}{first}{suffix}")
}

fn name(launcher: Launcher, get: Get<'_>) -> String {
    let of: &[&str] = match launcher {
        // Its agents may be in different steps of a job.
        Launcher::Torch => &["TORCHELASTIC_RUN_ID"],
        Launcher::Own => &[LAUNCH],
        Launcher::OpenMpi | Launcher::Pmi | Launcher::Slurm => &["SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"],
    };
    let parts = of.iter().filter_map(|name| text(get, name));
    std::iter::once(launcher.name().to_owned()).chain(parts).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(variables: &[(&str, &str)]) -> Result<Option<Launch>> {
        Launch::in_environment(&|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        })
    }

    fn found(variables: &[(&str, &str)]) -> (Launcher, [usize; 2], Option<(String, u16)>) {
        let Launch { launcher, ranks, address, .. } = launch(variables).unwrap().unwrap();
        (launcher, [ranks.rank, ranks.count], address)
    }

    #[test]
    fn each_launcher_is_recognised() {
        let torch = [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];
        assert_eq!(found(&torch), (Launcher::Torch, [3, 4], Some(("node1".into(), 29500))));
        // torchrun's agent listens on its port.
        let agent = [&torch[..], &[("TORCHELASTIC_RUN_ID", "none")]].concat();
        assert_eq!(found(&agent).2, Some(("node1".into(), 29501)));
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(found(&open_mpi), (Launcher::OpenMpi, [1, 2], None));
        assert_eq!(found(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]), (Launcher::Pmi, [0, 2], None));
        let slurm = [
            ("SLURM_PROCID", "5"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_STEP_NODELIST", "gpu[03-04]"),
            ("SLURM_JOB_ID", "1001"),
            ("SLURM_STEP_ID", "2"),
        ];
        assert_eq!(found(&slurm), (Launcher::Slurm, [5, 8], Some(("gpu03".into(), 27_009))));
        let variables = variables_of(Ranks { rank: 3, count: 4 }, 29500, "x");
        let own: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(found(&own), (Launcher::Own, [3, 4], Some(("127.0.0.1".into(), 29500))));
        // Slurm's PMI-2, and processes that MPICH starts by srun.
        let pmi = [("PMI_RANK", "5"), ("PMI_SIZE", "8")];
        assert_eq!(found(&[&slurm[..], &pmi].concat()), found(&slurm));
        let of_hydra = [&[("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")][..], &pmi].concat();
        assert_eq!(found(&of_hydra), (Launcher::Pmi, [5, 8], None));
        // Each may start the one before it.
        assert_eq!(found(&[&slurm[..], &open_mpi].concat()).0, Launcher::OpenMpi);
        assert_eq!(found(&[&slurm[..], &open_mpi, &torch].concat()).0, Launcher::Torch);
    }

    #[test]
    fn a_process_that_is_alone_is_no_rank() {
        assert_eq!(launch(&[]).unwrap(), None);
        assert_eq!(launch(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap(), None);
        assert_eq!(launch(&[("WORLD_SIZE", "4")]).unwrap(), None);
        // The script of a job with four tasks runs once, before any `srun`.
        let script = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7")];
        assert_eq!(launch(&script).unwrap(), None);
    }

    #[test]
    fn values_that_cannot_be_name_their_variable() {
        let error = |variables| launch(variables).unwrap_err().to_string();
        assert!(error(&[("RANK", "x"), ("WORLD_SIZE", "2")]).contains("invalid value `x` for the variable RANK"));
        assert!(error(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]).contains("PMI_RANK=2 is no rank of PMI_SIZE=2"));
        let port = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")];
        assert!(error(&port).contains("MASTER_PORT"));
        let port = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "0")];
        assert!(error(&port).contains("MASTER_PORT"));
    }

    #[test]
    fn the_first_node_of_a_list() {
        for (list, first) in [
            ("login", "login"),
            ("a1,a2", "a1"),
            ("gpu[03-05,9],login", "gpu03"),
            ("gpu[7,9]", "gpu7"),
            ("rack[2-3]-ib,x", "rack2-ib"),
            ("", ""),
            ("a[", "a"),
        ] {
            assert_eq!(first_node(list), first, "{list}");
        }
    }
}
