//! `penstock bench forwarded` with Docker. `bench/with_docker.py` starts an engine for the run in namespaces of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use testing::server::Lines;
use testing::sshd::children_of;
use testing::tools::{self, Root};
use testing::{eventually, millis, secs};

use super::forwarded::{measured, named, processes};

/// A bench run with its engine. Dropping it ends both and removes what they could not remove.
struct Run {
    scratch: TempDir,
    /// unshare(1). All processes end with it, because they are in a PID namespace.
    child: Child,
    said: Lines,
    /// Name of the engine's directory and of its control groups.
    engine: String,
}

impl Run {
    fn start(arguments: &[&str]) -> Self {
        for program in ["dockerd", "docker"] {
            tools::program(program);
        }
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new(tools::program("unshare"));
        command.args(["--pid", "--mount", "--fork", "--mount-proc", "--kill-child=KILL", "--"]);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/with_docker.py"));
        command.arg(testing::binary()).arg("bench").args(arguments).args(["--json", "r.json"]);
        command.env("TMPDIR", scratch.path()).current_dir(scratch.path());
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Lines::follow(child.stderr.take().unwrap());
        let mut run = Run { scratch, child, said, engine: String::new() };
        run.engine = eventually("the engine has a directory", secs(20), || {
            assert!(run.child.try_wait().unwrap().is_none(), "it ended: {:#?}", run.said.tail(20));
            let entries = fs::read_dir(run.scratch.path()).unwrap().flatten();
            let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            names.find(|name| name.starts_with("penstock-docker-"))
        });
        run
    }

    fn wait(&mut self) -> ExitStatus {
        eventually("the run ends", secs(120), || self.child.try_wait().unwrap())
    }

    /// The control groups of the engine, one in each hierarchy that it uses.
    fn groups(&self) -> Vec<PathBuf> {
        let top = PathBuf::from("/sys/fs/cgroup");
        let below = fs::read_dir(&top).into_iter().flatten().flatten().map(|entry| entry.path());
        let all = std::iter::once(top.clone()).chain(below);
        all.map(|path| path.join(&self.engine)).filter(|path| path.is_dir()).collect()
    }

    /// The control groups of its containers.
    fn containers(&self) -> Vec<PathBuf> {
        let entries = self.groups().into_iter().filter_map(|group| fs::read_dir(group).ok());
        entries.flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }

    #[track_caller]
    fn assert_gone(&self) {
        let scratch = self.scratch.path();
        eventually("no process is left", secs(20), || processes(scratch).is_empty().then_some(()));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&self.engine), "{mounts}");
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Processes of the namespace that are about to end keep their groups busy. A failed test must not panic again.
        let deadline = Instant::now() + secs(60);
        while !self.engine.is_empty() && !self.groups().is_empty() && Instant::now() < deadline {
            for group in self.containers().into_iter().chain(self.groups()) {
                let _ = fs::remove_dir(group);
            }
            thread::sleep(millis(5));
        }
        assert!(thread::panicking() || self.engine.is_empty() || self.groups().is_empty());
    }
}

#[test]
fn every_way_into_a_container_of_docker_is_measured_and_nothing_is_left_behind() {
    if tools::root("starts Docker's engine in namespaces") == Root::LeftOut {
        return;
    }
    let _only = super::only_run();
    let before = named();
    let mut run = Run::start(&["forwarded/docker-keep-alive", "--rounds", "1", "--duration", "100ms"]);
    let status = run.wait();
    assert!(status.success(), "{status}: {:#?}", run.said.tail(30));
    let groups = measured(run.scratch.path());
    let ways = ["loopback", "unix", "host-network", "dnat", "docker-proxy"].map(str::to_owned);
    assert_eq!(groups, [("docker-keep-alive".to_owned(), BTreeSet::from(ways))]);
    run.assert_gone();
    assert_eq!(run.groups(), Vec::<PathBuf>::new());
    assert_eq!(named(), before);
}

#[test]
fn a_run_with_docker_that_is_stopped_takes_the_engine_along() {
    if tools::root("starts Docker's engine in namespaces") == Root::LeftOut {
        return;
    }
    let _only = super::only_run();
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let before = named();
        let mut run = Run::start(&["forwarded/docker-keep-alive", "--rounds", "100", "--duration", "60s"]);
        eventually("a container is there", secs(60), || {
            let ended = run.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {ended:?} {:#?}", run.said.tail(20));
            (!run.containers().is_empty()).then_some(())
        });
        let script = children_of(run.child.id())[0];
        kill(Pid::from_raw(script as i32), signal).unwrap();
        run.wait();
        run.assert_gone();
        if signal == Signal::SIGTERM {
            assert_eq!(run.groups(), Vec::<PathBuf>::new());
        }
        drop(run);
        assert_eq!(named(), before, "{signal}");
    }
}
