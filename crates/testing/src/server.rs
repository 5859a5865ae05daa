//! The real binary, started with a configuration in its own directory.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;
use crate::shown::show;
use crate::{eventually, secs};

/// Path of the tested binary. Cargo builds it for the tests of its package, two directories above the test's own
/// binary.
pub fn binary() -> &'static str {
    static PATH: LazyLock<String> = LazyLock::new(|| {
        let test = std::env::current_exe().unwrap();
        let path = test.ancestors().nth(2).unwrap().join("penstock");
        assert!(path.exists(), "{} is missing: `cargo test -p penstock` builds it", path.display());
        path.into_os_string().into_string().unwrap()
    });
    &PATH
}

/// Lines that a process has written so far.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// Reads `from` to its end on a separate thread. Keeps the last lines only, which limits memory.
    pub fn follow(from: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let kept = lines.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(from);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(read) if read > 0) {
                let mut all = kept.0.lock().unwrap();
                if all.len() >= 50_000 {
                    all.drain(..25_000);
                }
                all.push(String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned());
                line.clear();
            }
        });
        lines
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    #[track_caller]
    pub fn wait_for(&self, part: &str, limit: Duration) -> String {
        eventually(&format!("a line with {part:?}; so far: {:#?}", self.tail(20)), limit, || {
            self.0.lock().unwrap().iter().find(|line| line.contains(part)).cloned()
        })
    }

    pub fn count(&self, part: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|line| line.contains(part)).count()
    }

    pub fn tail(&self, count: usize) -> Vec<String> {
        let all = self.0.lock().unwrap();
        all[all.len().saturating_sub(count)..].to_vec()
    }
}

pub struct Setup {
    config: String,
    wrapper: Vec<String>,
    env: Vec<(String, String)>,
    dir: TempDir,
    arguments: Option<Vec<String>>,
}

pub struct Server {
    child: Child,
    /// Directory of the configuration; `@DIR@` stands for it.
    pub dir: TempDir,
    pub stderr: Lines,
    pub stdout: Lines,
    addresses: Mutex<HashMap<String, Vec<String>>>,
}

impl Setup {
    /// Prepares a server. `@DIR@` in `config` stands for the server's own directory.
    pub fn new(config: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("pst").tempdir().unwrap();
        Self { config: config.to_owned(), wrapper: Vec::new(), env: Vec::new(), dir, arguments: None }
    }

    /// The server's directory, before the start.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Sets the configuration, if its text depends on the directory.
    pub fn configured(mut self, config: &str) -> Self {
        config.clone_into(&mut self.config);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs the server through another command (`prlimit`, `sh -c`, ...).
    pub fn through<const N: usize>(mut self, wrapper: [&str; N]) -> Self {
        self.wrapper = wrapper.iter().map(ToString::to_string).collect();
        self
    }

    /// Sets arguments instead of `serve --config FILE`.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = Some(arguments.iter().map(ToString::to_string).collect());
        self
    }

    fn command(&self) -> Command {
        let file = self.dir.path().join("penstock.toml");
        fs::write(&file, self.config.replace("@DIR@", self.dir.path().to_str().unwrap())).unwrap();
        let mut words = self.wrapper.clone();
        words.push(binary().to_owned());
        match &self.arguments {
            Some(arguments) => words.extend(arguments.iter().cloned()),
            None => {
                words.extend(["serve".to_owned(), "--config".to_owned(), file.to_str().unwrap().to_owned()])
            }
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        clear_environment(&mut command);
        // Any test of servers can be run with another engine, unless it is one of an engine.
        if let Ok(engine) = std::env::var("PENSTOCK_TEST_ENGINE")
            && !self.config.contains("engine = \"")
        {
            command.env("PENSTOCK_PROCESS_ENGINE", engine);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts the server and waits until its log says that it is ready.
    #[track_caller]
    pub fn start(self) -> Server {
        let mut child = self.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = Lines::follow(child.stderr.take().unwrap());
        let stdout = Lines::follow(child.stdout.take().unwrap());
        let mut server = Server { child, dir: self.dir, stderr, stdout, addresses: Mutex::default() };
        let deadline = Instant::now() + secs(90);
        while server.stderr.count(" ready") == 0 {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended with {ended:?}: {:#?}", server.stderr.tail(40));
            assert!(Instant::now() < deadline, "the server is not ready: {:#?}", server.stderr.tail(40));
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// Runs to the end, for configurations with which the server must not start.
    pub fn output(self) -> Output {
        run_to_end(&mut self.command(), secs(30))
    }
}

impl Server {
    /// Starts with a configuration; see [`Setup::new`].
    #[track_caller]
    pub fn start(config: &str) -> Self {
        Setup::new(config).start()
    }

    /// The first address of a listener, as `127.0.0.1:43211` or `unix:/path`.
    #[track_caller]
    pub fn address(&self, listener: &str) -> String {
        self.addresses(listener).into_iter().next().unwrap_or_else(|| {
            panic!("no line says where listener {listener} listens: {:#?}", self.stderr.tail(40))
        })
    }

    /// All addresses of a listener, in the order of the log.
    pub fn addresses(&self, listener: &str) -> Vec<String> {
        if let Some(known) = self.addresses.lock().unwrap().get(listener) {
            return known.clone();
        }
        let word = format!("listening listener={listener} ");
        let found: Vec<String> = self
            .stderr
            .all()
            .iter()
            .filter(|line| line.contains(&word))
            .filter_map(|line| field(line, "address"))
            .collect();
        if !found.is_empty() {
            self.addresses.lock().unwrap().insert(listener.to_owned(), found.clone());
        }
        found
    }

    #[track_caller]
    pub fn admin(&self) -> String {
        let line = self.stderr.wait_for("listening admin", secs(5));
        field(&line, "address").expect("the line names an address")
    }

    /// Path of the control socket, by a convention of these tests.
    pub fn control_socket(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    #[track_caller]
    pub fn client(&self, listener: &str) -> Client {
        Client::connect(&self.address(listener))
    }

    pub fn ctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.arg("ctl").arg("--socket").arg(self.control_socket()).args(arguments).stdin(Stdio::null());
        clear_environment(&mut command);
        run_to_end(&mut command, secs(30))
    }

    /// What `penstock ctl` prints, which must succeed.
    #[track_caller]
    pub fn said(&self, arguments: &[&str]) -> String {
        let output = self.ctl(arguments);
        assert!(output.status.success(), "ctl {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The error of `penstock ctl`, which must fail.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.ctl(arguments);
        assert!(!output.status.success(), "ctl {arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs `penstock ctl ... --json` and parses the answer.
    #[track_caller]
    pub fn ctl_json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        let output = self.ctl(&all);
        assert!(output.status.success(), "ctl {arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("ctl {arguments:?}: {error}: {}", String::from_utf8_lossy(&output.stdout))
        })
    }

    /// One backend from `ctl backends --json`.
    #[track_caller]
    pub fn backend(&self, address: &str) -> Value {
        let all = self.ctl_json(&["backends"]);
        find_backend(&all, address).unwrap_or_else(|| panic!("no backend {address} in {all:#}"))
    }

    /// Health of one backend (`up`, `down`, `ejected`, ...).
    pub fn health(&self, address: &str) -> String {
        let backend = self.backend(address);
        backend["state"].as_str().unwrap_or_else(|| panic!("no state in {backend:#}")).to_owned()
    }

    #[track_caller]
    pub fn metrics(&self) -> String {
        let answer = Client::connect(&self.admin()).get("/metrics", &[]);
        assert_eq!(answer.status, 200);
        String::from_utf8(answer.body).unwrap()
    }

    pub fn write_config(&self, config: &str) {
        let text = config.replace("@DIR@", self.dir.path().to_str().unwrap());
        let (file, new) = (self.dir.path().join("penstock.toml"), self.dir.path().join("penstock.toml.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, file).unwrap();
    }

    /// Process id of the started command (of the wrapper, which must `exec`).
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
        if signal == Signal::SIGSTOP {
            eventually("all threads stop", secs(10), || self.is_stopped().then_some(()));
        }
    }

    fn is_stopped(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        // A thread that ends meanwhile has no file any more: the next look finds those that are left.
        let stats = tasks.map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
        let is_stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
        stats.into_iter().all(|stat| stat.is_some_and(is_stopped))
    }

    #[track_caller]
    pub fn wait_end(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "the server did not end in {limit:?}: {:#?}",
                self.stderr.tail(20)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    pub fn assert_running(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the server ended with {ended:?}: {:#?}", self.stderr.tail(40));
    }

    /// User and system time so far.
    pub fn cpu_time(&self) -> Duration {
        cpu_time(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            show("standard error of the server", &self.stderr.tail(60).join("\n"));
            show("standard output of the server", &self.stdout.tail(20).join("\n"));
        }
    }
}

pub fn penstock(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null());
    clear_environment(&mut command);
    run_to_end(&mut command, secs(60))
}

/// Starts a command. execve(2) of a program that a test has just written fails with ETXTBSY, as long as a child of
/// another test has inherited the descriptor for writing and has not called execve(2) itself.
#[track_caller]
fn spawn(command: &mut Command) -> Child {
    let mut tries = 0;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < 1000 => tries += 1,
            started => return started.unwrap(),
        }
        std::thread::yield_now();
    }
}

/// Runs a command to its end; kills it at the limit.
#[track_caller]
pub fn run_to_end(command: &mut Command, limit: Duration) -> Output {
    let mut child = spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = out.read_to_end(&mut bytes);
        bytes
    });
    let err = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = err.read_to_end(&mut bytes);
        bytes
    });
    let deadline = Instant::now() + limit;
    let (status, late) = loop {
        match child.try_wait().unwrap() {
            Some(status) => break (status, false),
            None if Instant::now() >= deadline => {
                let _ = child.kill();
                break (child.wait().unwrap(), true);
            }
            None => std::thread::sleep(Duration::from_millis(3)),
        }
    };
    let output = Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() };
    assert!(!late, "{command:?} did not end in {limit:?}: {output:?}");
    output
}

/// Removes the environment variables that could change the program's behaviour.
pub fn clear_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("PENSTOCK_")
            || text.starts_with("LISTEN_")
            || text == "NOTIFY_SOCKET"
            || text == "STATE_DIRECTORY"
            || text == "RUST_LOG"
        {
            command.env_remove(&name);
        }
    }
}

/// Value of `key=value` in a line.
pub fn field(line: &str, key: &str) -> Option<String> {
    let word = format!(" {key}=");
    let value = &line[line.find(&word)? + word.len()..];
    Some(value.split_whitespace().next().unwrap_or_default().trim_matches('"').to_owned())
}

/// User and system time of a process, from `/proc/PID/stat`.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10) // USER_HZ is 100 on every Linux port
}

fn find_backend(value: &Value, address: &str) -> Option<Value> {
    match value {
        Value::Object(map) => {
            let named = ["name", "address", "backend"]
                .iter()
                .any(|key| map.get(*key).and_then(Value::as_str) == Some(address));
            if named {
                Some(value.clone())
            } else {
                map.values().find_map(|inner| find_backend(inner, address))
            }
        }
        Value::Array(all) => all.iter().find_map(|inner| find_backend(inner, address)),
        _ => None,
    }
}
