//! A command on many hosts in parallel: `true` on a lab of SSH hosts, run by this program and by programs that start
//! one `ssh` per host.
//!
//! Each contestant has its own lab process on the load's core. The lab's journal counts the hosts that ran the command
//! and the parallel sessions. A trial is a whole run, from the start of the program to its end.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::contestant::{Contestant, Running};
use crate::context::{Context, Extent};
use crate::error::{Error, ErrorContext};
use crate::limit::Limit;
use crate::load::gauge::Window;
use crate::meter::{self, Cpu, Processes};
use crate::pairing::Pairing;
use crate::plan::{Group, Length, Plan, Scenario};
use crate::process::{self, Launch, Process};
use crate::sample::{Better, Metric, Sample, Scale};
use crate::version;
use journal::Tally;

mod journal;

#[derive(Debug)]
pub struct Fleet;

impl Scenario for Fleet {
    fn name(&self) -> &'static str {
        "fleet"
    }

    fn question(&self) -> &'static str {
        "`true` on 100 and 1000 SSH hosts: what does it cost here, and how long does it take?"
    }

    fn plan(&self, context: &Context) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        for (hosts, extent) in [(100, Extent::Quick), (1000, Extent::Full)] {
            let mut group = Group::new(
                format!("hosts-{hosts}"),
                format!("`true` on {hosts} hosts, all of them at once"),
                "host",
                Pairing::Subject(Runner::Penstock.name().to_owned()),
            );
            group.columns = columns();
            group.extent = extent;
            group.length = Length::Own(Duration::from_micros(8_500 * hosts as u64));
            // Per host, the lab has a listener and a connection; a program that starts processes has three pipes.
            group.descriptors = 4 * hosts as u64 + 200;
            let rivals = [Runner::ParallelSsh, Runner::Pdsh, Runner::Clush].map(Runner::name);
            group.limits = vec![
                Limit::ratio(Runner::Penstock.name(), Metric::CpuPerUnit, &rivals, 1.0 / 5.0),
                Limit::ratio(Runner::Penstock.name(), Metric::TimePerUnit, &rivals, 1.0 / 3.0),
                Limit::absolute(Runner::Penstock.name(), per_session(), 1e6),
            ];
            for runner in Runner::ALL {
                match runner.find(context) {
                    Ok(program) => group.contestants.push(contestant(runner, program, hosts)),
                    Err(error) => plan.note_missing(error)?,
                }
            }
            plan.groups.push(group);
        }
        plan.notes = NOTES.iter().map(|note| (*note).to_owned()).collect();
        Ok(plan)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    Penstock,
    ParallelSsh,
    Pdsh,
    Clush,
    /// One `ssh` per host, 100 in parallel, like a simple script.
    Forks,
}

impl Runner {
    const ALL: [Runner; 5] =
        [Runner::Penstock, Runner::ParallelSsh, Runner::Pdsh, Runner::Clush, Runner::Forks];

    fn name(self) -> &'static str {
        match self {
            Runner::Penstock => "penstock",
            Runner::ParallelSsh => "parallel-ssh",
            Runner::Pdsh => "pdsh",
            Runner::Clush => "clush",
            Runner::Forks => "ssh-by-100",
        }
    }

    fn find(self, context: &Context) -> Result<PathBuf, Error> {
        if self != Runner::Penstock {
            process::find("ssh", "openssh-client")?;
        }
        match self {
            Runner::Penstock => Ok(context.program.clone()),
            Runner::ParallelSsh => process::find("parallel-ssh", "pssh"),
            Runner::Pdsh => process::find("pdsh", "pdsh"),
            Runner::Clush => process::find("clush", "clustershell"),
            Runner::Forks => process::find("python3", "python3"),
        }
    }

    fn version(self, program: &Path) -> Option<String> {
        match self {
            Runner::Pdsh => version::of(program, &["-V"]),
            Runner::Forks => version::of(Path::new("ssh"), &["-V"]),
            _ => version::of(program, &["--version"]),
        }
    }

    /// Builds the command line for all or a few hosts. Sets any limit of parallel sessions to the number of hosts.
    fn launch(self, context: &Context, program: &Path, place: &RunningLab, share: Share) -> Launch {
        let Lists { names, addresses: ours } = place.lists(share);
        let most = place.count(share).to_string();
        let launch = Launch::new(self.name(), program, &context.cores.target);
        let file = |name: &str| place.directory.join(name);
        let options = format!("-F {}", place.config.display());
        match self {
            Runner::Penstock => launch
                .args(["run", "--parallel", &most, "--hosts"])
                .arg(names)
                .arg("-F")
                .arg(file("ssh_config"))
                .arg("true")
                .env("XDG_CONFIG_HOME", file("config"))
                .env("XDG_STATE_HOME", file("state"))
                .env("HOME", &place.directory),
            Runner::ParallelSsh => {
                launch.args(["-p", &most, "-t", "0", "-x", &options, "-h"]).arg(ours).arg("true")
            }
            Runner::Pdsh => launch
                .args(["-R", "ssh", "-f", &most, "-t", "60", "-w"])
                .arg(format!("^{}", ours.display()))
                .arg("true")
                .env("PDSH_SSH_ARGS_APPEND", options),
            Runner::Clush => {
                launch.args(["-f", &most, "-t", "60", "-o", &options, "--hostfile"]).arg(ours).arg("true")
            }
            Runner::Forks => launch.args(["-I", "-c", FORKS, "100"]).arg(&place.config).arg(ours).arg("true"),
        }
    }
}

fn contestant(runner: Runner, program: PathBuf, hosts: usize) -> Contestant {
    let version = runner.version(&program);
    let contestant = Contestant::new(runner.name(), move |context| {
        let place = RunningLab::start(context, runner, hosts)?;
        Ok(Runs { runner, program: program.clone(), place, share: Share::Few })
    });
    match version {
        Some(version) => contestant.version(version),
        None => contestant,
    }
}

/// A lab with the files that its clients need.
struct RunningLab {
    lab: Process,
    hosts: usize,
    directory: PathBuf,
    /// Minimal `ssh` configuration, with one known-hosts file of one line per host.
    config: PathBuf,
    all: Lists,
    few: Lists,
}

/// Host lists with one host per line.
struct Lists {
    names: PathBuf,
    addresses: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    All,
    /// Only enough hosts to detect a contestant that cannot connect at all.
    Few,
}

impl RunningLab {
    fn lists(&self, share: Share) -> &Lists {
        if share == Share::All { &self.all } else { &self.few }
    }

    fn count(&self, share: Share) -> usize {
        if share == Share::All { self.hosts } else { self.hosts.min(FEW) }
    }

    fn start(context: &Context, runner: Runner, hosts: usize) -> Result<Self, Error> {
        let directory = context.path("lab");
        let launch = Launch::new(format!("lab of {}", runner.name()), &context.program, &context.cores.load)
            .args(["lab", &hosts.to_string(), "--dir"])
            .arg(&directory);
        let (lab, pipes) = Process::start_piped(context, &launch)?;
        let (_, stdout) = pipes.ok_or_else(|| Error::Worthless("the lab has no standard output".into()))?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).doing("wait for the lab")?;
        if !line.starts_with("ready: ") {
            return Err(Error::Ended { what: launch.name, log: lab.last_words() });
        }
        let config = directory.join("short_config");
        let lists = |more: &str| Lists {
            names: directory.join(format!("hosts{more}")),
            addresses: directory.join(format!("addresses{more}")),
        };
        let (all, few) = (lists(""), lists(".few"));
        let known = directory.join("known");
        let write = || -> std::io::Result<()> {
            let text = fs::read_to_string(directory.join("known_hosts"))?;
            fs::create_dir(&known)?;
            let mut addresses = String::new();
            let mut port = "22";
            for line in text.lines() {
                // `lab001,[127.66.0.1]:4321 ssh-ed25519 AAAA`
                let Some((address, rest)) = line.split_once(",[").and_then(|(_, rest)| rest.split_once("]:"))
                else {
                    continue;
                };
                let Some((number, key)) = rest.split_once(' ') else { continue };
                port = number;
                addresses += &format!("{address}\n");
                fs::write(known.join(address), format!("[{address}]:{port} {key}\n"))?;
            }
            fs::write(&all.addresses, &addresses)?;
            fs::write(&few.addresses, head(&addresses))?;
            fs::write(&few.names, head(&fs::read_to_string(&all.names)?))?;
            fs::write(&config, short_config(&directory, port))
        };
        write().doing("write the files of the lab's clients")?;
        Ok(RunningLab { lab, hosts, directory, config, all, few })
    }
}

fn head(text: &str) -> String {
    text.lines().take(FEW).map(|line| format!("{line}\n")).collect()
}

/// Minimal `ssh` configuration: `ssh` must not read a long known-hosts file for each host.
fn short_config(directory: &Path, port: &str) -> String {
    let directory = directory.display();
    format!(
        "\
Host *
  Port {port}
  User lab
  IdentityFile {directory}/client_key
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {directory}/known/%h
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  UpdateHostKeys no
  BatchMode yes
  LogLevel ERROR
"
    )
}

struct Runs {
    runner: Runner,
    program: PathBuf,
    place: RunningLab,
    /// Few hosts in the warm-up: it loads all programs into memory, and a run of a thousand `ssh` takes long.
    share: Share,
}

impl Running for Runs {
    fn configuration(&self) -> String {
        let words = match self.runner {
            Runner::Penstock => "penstock run --parallel N --hosts hosts -F ssh_config true",
            Runner::ParallelSsh => "parallel-ssh -p N -t 0 -x '-F config' -h addresses true",
            Runner::Pdsh => "PDSH_SSH_ARGS_APPEND='-F config' pdsh -R ssh -f N -t 60 -w ^addresses true",
            Runner::Clush => "clush -f N -t 60 -o '-F config' --hostfile addresses true",
            Runner::Forks => {
                return format!("python3 -I fork.py 100 config addresses true\n\n# fork.py\n{FORKS}");
            }
        };
        let port = "PORT";
        match self.runner {
            Runner::Penstock => format!("{words}\n"),
            _ => format!("{words}\n\n# config\n{}", short_config(Path::new("DIRECTORY"), port)),
        }
    }

    /// Runs the whole command repeatedly until the window has passed, at least once.
    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error> {
        let begin = Instant::now();
        let mut sample = Sample::default();
        let mut figures = Figures::default();
        loop {
            self.once(context, &mut sample, &mut figures)?;
            // Do not repeat a run that failed.
            if sample.errors > 0 || begin.elapsed() >= window.duration {
                break;
            }
        }
        sample.figures = figures.named(sample.units);
        self.share = Share::All;
        Ok(sample)
    }

    fn elsewhere(&self) -> Vec<i32> {
        vec![self.place.lab.pid()]
    }
}

impl Runs {
    fn once(&mut self, context: &Context, sample: &mut Sample, figures: &mut Figures) -> Result<(), Error> {
        self.place.lab.check()?;
        let mut journal = journal::Journal::at_end(&self.place.directory.join("journal"))
            .doing("read the journal of the lab")?;
        let lab = self.place.lab.pid();
        let lab_before = Processes::read().cpu_of_tree(lab);
        let before = process::cpu_of_ended()?;
        let launch = self.runner.launch(context, &self.program, &self.place, self.share);
        let begin = Instant::now();
        let mut process = Process::start(context, &launch)?;
        let mut peak = 0;
        let mut next = begin;
        while process.check().is_ok() {
            context.check()?;
            if begin.elapsed() > LIMIT {
                let seconds = LIMIT.as_secs();
                return Err(Error::NotReady { what: launch.name, seconds, log: process.last_words() });
            }
            let now = Instant::now();
            if now >= next {
                peak = peak.max(meter::footprint_of_tree(process.pid()));
                // Reading a thousand processes takes time: limit it to 1/20 of the run.
                next = Instant::now() + (now.elapsed() * 20).max(Duration::from_millis(20));
            }
            thread::sleep(Duration::from_millis(2));
        }
        let seconds = begin.elapsed().as_secs_f64();
        let words = process.last_words();
        drop(process);
        let used = process::cpu_of_ended()? - before;
        let Tally { ended, at_once } = journal.tally().doing("read the journal of the lab")?;
        let hosts = self.place.count(self.share);
        let missed = hosts.saturating_sub(ended);
        sample.units += ended.min(hosts) as f64;
        sample.seconds += seconds;
        sample.cpu = Some(sample.cpu.unwrap_or_default() + used);
        sample.errors += missed as u64;
        if missed > 0 && sample.first_error.is_none() {
            sample.first_error = Some(words);
        }
        figures.add(peak, at_once, Processes::read().cpu_of_tree(lab) - lab_before);
        Ok(())
    }
}

/// Figures beside the duration.
#[derive(Default)]
struct Figures {
    peak: u64,
    at_once: usize,
    lab: f64,
}

impl Figures {
    fn add(&mut self, peak: u64, at_once: usize, lab: Cpu) {
        self.peak = self.peak.max(peak);
        self.at_once = self.at_once.max(at_once);
        self.lab += lab.total;
    }

    fn named(&self, hosts: f64) -> BTreeMap<String, f64> {
        BTreeMap::from([
            (PEAK.to_owned(), self.peak as f64),
            (AT_ONCE.to_owned(), self.at_once as f64),
            (PER_SESSION.to_owned(), self.peak as f64 / self.at_once.max(1) as f64),
            (LAB.to_owned(), self.lab / hosts.max(1.0)),
        ])
    }
}

fn figure(key: &str, title: &str, scale: Scale, better: Better) -> Metric {
    Metric::Figure { key: key.to_owned(), title: title.to_owned(), scale, better }
}

fn per_session() -> Metric {
    figure(PER_SESSION, "memory per session", Scale::Bytes, Better::Lower)
}

fn columns() -> Vec<Metric> {
    vec![
        Metric::TimePerUnit,
        figure(PEAK, "peak memory", Scale::Bytes, Better::Lower),
        figure(AT_ONCE, "sessions at once", Scale::Count, Better::Higher),
        per_session(),
        figure(LAB, "CPU of the lab per host", Scale::Seconds, Better::Lower),
    ]
}

/// Starts one `ssh` per host, with a limit of parallel processes, and waits for all.
const FORKS: &str = "\
import os, sys
most, config, file, command = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
running = failed = 0
nothing = os.open('/dev/null', os.O_RDWR)
for host in open(file).read().split():
    if running == most:
        failed += os.wait()[1] != 0
        running -= 1
    actions = [(os.POSIX_SPAWN_DUP2, nothing, 0)]
    os.posix_spawnp('ssh', ['ssh', '-F', config, host, command], os.environ, file_actions=actions)
    running += 1
while running:
    failed += os.wait()[1] != 0
    running -= 1
sys.exit(failed != 0)
";

const NOTES: &[&str] = &[
    "Each figure is of whole runs, from the start of the program to its end. CPU is that of the program and of all \
     processes that it started and waited for, user and system; the hosts are a `penstock lab` on another core, whose \
     CPU is told apart.",
    "All hosts at once: -p, -f and --parallel are the number of hosts. ssh-by-100 is a small script that keeps a hundred \
     `ssh` running. This favours contestants that run `ssh`: a configuration of a dozen lines, and a known_hosts file of one line \
     for each host. penstock reads its configuration of three lines for each host and an identity file for each.",
    "Memory is the most that the program itself had, with its program text, and what the processes that it started have \
     for themselves at the worst moment seen; divided by the sessions that the hosts saw at once.",
];

const PEAK: &str = "peak-memory";
const AT_ONCE: &str = "sessions-at-once";
const PER_SESSION: &str = "memory-per-session";
const LAB: &str = "lab-cpu-per-host";

/// Number of hosts in the warm-up run.
const FEW: usize = 20;

/// Time limit of one run.
const LIMIT: Duration = Duration::from_secs(120);
