//! Programs under callgrind: the codec example run to its end, and the release binary as a server whose counter is set
//! back and read while it runs. Its start costs a thousand times a request and differs each time (it gathers entropy),
//! so it must not be part of a count.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use testing::peers::Process;
use testing::server::{binary, field, run_to_end};
use testing::{eventually, secs, tools};

/// What is counted.
pub(crate) struct Release {
    /// `penstock`
    pub penstock: PathBuf,
    /// The example program of `crates/logic`.
    pub codec: PathBuf,
}

/// Builds both once, as users get them: the binary that cargo built for this test is not optimised.
pub(crate) fn release() -> &'static Release {
    static RELEASE: LazyLock<Release> = LazyLock::new(|| {
        // Beside the binary that cargo built for this test: TARGET/debug/penstock.
        let target = Path::new(binary()).parent().and_then(Path::parent).unwrap();
        build(target, &["--package", "penstock", "--bin", "penstock"]);
        build(target, &["--package", "logic", "--example", "codec"]);
        let release = target.join("release");
        Release { penstock: release.join("penstock"), codec: release.join("examples/codec") }
    });
    &RELEASE
}

fn build(target: &Path, what: &[&str]) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--locked"]).args(what).stdin(Stdio::null());
    command.env("CARGO_TARGET_DIR", target).current_dir(super::kept::root());
    // A limit for what hangs only: from nothing it takes a slow machine long.
    let output = run_to_end(&mut command, secs(7200));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Instructions of a whole run of `codec CASE TIMES`.
#[track_caller]
pub(crate) fn codec(case: &str, times: u32) -> u64 {
    let profile = profiles().map_or_else(|| "/dev/null".into(), |dir| dir.join(format!("codec-{case}")));
    let mut command = callgrind(&profile);
    command.arg(&release().codec).arg(case).arg(times.to_string()).stdin(Stdio::null());
    let output = run_to_end(&mut command, secs(120));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    let line = said.lines().find_map(|line| line.split("Collected :").nth(1));
    line.and_then(|count| count.trim().parse().ok())
        .unwrap_or_else(|| panic!("callgrind tells no count: {said}"))
}

/// `penstock serve` under callgrind.
pub(crate) struct Counted {
    process: Process,
    dir: TempDir,
}

impl Counted {
    /// Starts it and waits until it is ready.
    #[track_caller]
    pub(crate) fn start(config: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("pst").tempdir().unwrap();
        let file = dir.path().join("penstock.toml");
        fs::write(&file, config).unwrap();
        let mut command = callgrind(&dir.path().join("counts"));
        command.arg(format!("--vgdb-prefix={}", dir.path().join("vgdb").display()));
        command.arg(&release().penstock).args(["serve", "--no-sandbox", "--config"]).arg(&file);
        let process = Process::start(&mut command);
        process.stderr.wait_for(" ready", secs(60));
        Self { process, dir }
    }

    /// Address of a listener.
    #[track_caller]
    pub(crate) fn address(&self, listener: &str) -> String {
        let line = self.process.stderr.wait_for(&format!("listening listener={listener} "), secs(5));
        field(&line, "address").expect("the line names an address")
    }

    /// Waits until every thread sleeps. What comes next then always finds the server in the same state, however fast
    /// the peers are: it is told of each event by itself, and never finds the next one there already.
    #[track_caller]
    pub(crate) fn settle(&self) {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.process.pid()));
        let sleeps = |task: &Path| {
            // The state follows the name, which is in parentheses. A thread that ended has no file.
            fs::read_to_string(task.join("stat"))
                .map_or(true, |stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')))
        };
        let deadline = std::time::Instant::now() + secs(20);
        while !fs::read_dir(&tasks).unwrap().all(|task| sleeps(&task.unwrap().path())) {
            assert!(std::time::Instant::now() < deadline, "the server does not come to rest");
        }
    }

    /// Sets the counter back.
    #[track_caller]
    pub(crate) fn zero(&self) {
        self.settle();
        self.tell("zero");
    }

    /// Instructions of all threads since the counter was set back; also sets it back.
    #[track_caller]
    pub(crate) fn collected(&mut self, name: &str) -> u64 {
        self.settle();
        self.tell("dump");
        let dump = eventually("callgrind writes its counts", secs(10), || {
            let files = fs::read_dir(self.dir.path()).unwrap().map(|file| file.unwrap().path());
            // The file without a number is for what is left when the program ends.
            files.into_iter().find(|path| path.display().to_string().contains("/counts."))
        });
        let count = eventually("the counts are whole", secs(10), || {
            let text = fs::read_to_string(&dump).unwrap();
            text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
        });
        if let Some(profiles) = profiles() {
            fs::copy(&dump, profiles.join(name)).unwrap();
        }
        fs::remove_file(&dump).unwrap();
        count
    }

    /// Gives callgrind a command.
    #[track_caller]
    fn tell(&self, word: &str) {
        let mut command = Command::new(tools::program("vgdb"));
        command.arg(format!("--vgdb-prefix={}", self.dir.path().join("vgdb").display()));
        command.arg(format!("--pid={}", self.process.pid())).arg(word).stdin(Stdio::null());
        let output = run_to_end(&mut command, secs(30));
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.process.signal(Signal::SIGTERM);
        if std::thread::panicking() {
            eprintln!("--- standard error of the server ---\n{}", self.process.stderr.tail(40).join("\n"));
        }
    }
}

fn callgrind(profile: &Path) -> Command {
    let mut command = Command::new(tools::program("valgrind"));
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", profile.display()));
    command
}

/// Where the profiles are kept, if this variable is set.
fn profiles() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("INSTRUCTION_PROFILES")?);
    fs::create_dir_all(&dir).unwrap();
    Some(dir)
}
