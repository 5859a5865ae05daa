//! Programs that the tests use. If a program is missing, the test fails and says how to install it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::server::run_to_end;

/// Whether a test that needs root runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// Root runs the test.
    Here,
    /// `PENSTOCK_TEST_WITHOUT_ROOT` skips tests that need root.
    LeftOut,
}

/// Called by a test that needs root; `does` says for what. Panics without root, unless such tests are skipped.
#[track_caller]
pub fn root(does: &str) -> Root {
    if nix::unistd::geteuid().is_root() {
        return Root::Here;
    }
    let left_out = std::env::var_os("PENSTOCK_TEST_WITHOUT_ROOT").is_some();
    assert!(
        left_out,
        "this test {does}: run it as root, or set PENSTOCK_TEST_WITHOUT_ROOT=1 to leave it out"
    );
    println!("not run: this test {does}, which needs root");
    Root::LeftOut
}

/// Finds a program in `PATH` or in Debian's directories for daemons.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let daemons = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(daemons)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("{name} is missing: run `make setup`"))
}

/// The Python interpreter of one of our virtual environments (`gunicorn`, `websockets`).
#[track_caller]
pub fn python(environment: &str) -> PathBuf {
    let found = venv(environment).join("bin/python3");
    assert!(found.exists(), "the Python environment {environment} is missing: run `make setup`");
    found
}

#[track_caller]
pub fn python_script(environment: &str, name: &str) -> PathBuf {
    let found = venv(environment).join("bin").join(name);
    assert!(found.exists(), "{name} of the Python environment {environment} is missing: run `make setup`");
    found
}

/// Path of h2spec, a conformance test of HTTP/2.
#[track_caller]
pub fn h2spec() -> PathBuf {
    built("h2spec")
}

#[track_caller]
pub fn built(name: &str) -> PathBuf {
    let found = cache().join("bin").join(name);
    assert!(found.exists(), "{name} is missing: run `make setup`");
    found
}

/// Directory with the packages of Heimdal, unpacked.
#[track_caller]
pub fn heimdal() -> PathBuf {
    let found = cache().join("heimdal");
    assert!(found.join("usr/lib/heimdal-servers/kdc").exists(), "Heimdal is missing: run `make setup`");
    found
}

fn venv(environment: &str) -> PathBuf {
    cache().join(format!("venv-{environment}"))
}

/// Directory in which `make setup` installs.
fn cache() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_else(std::env::temp_dir);
    cache.join("penstock")
}

/// Runs a program to its end, with a time limit.
#[track_caller]
pub fn run(name: &str, arguments: &[&str], limit: Duration) -> Output {
    run_to_end_of(&program(name), arguments, limit)
}

/// Runs the program at a path to its end, with a time limit.
#[track_caller]
pub fn run_to_end_of(program: &Path, arguments: &[&str], limit: Duration) -> Output {
    run_to_end(Command::new(program).args(arguments).stdin(Stdio::null()), limit)
}

#[track_caller]
pub fn curl(arguments: &[&str]) -> Output {
    let mut all = vec!["--silent", "--show-error", "--max-time", "60", "--noproxy", "*"];
    all.extend(arguments);
    run("curl", &all, Duration::from_secs(70))
}

/// Runs curl, which must succeed. Returns its standard output.
#[track_caller]
pub fn curl_text(arguments: &[&str]) -> String {
    let output = curl(arguments);
    assert!(output.status.success(), "curl {arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs openssl, which must succeed. Returns its standard output.
#[track_caller]
pub fn openssl(arguments: &[&str]) -> String {
    let output = run("openssl", arguments, Duration::from_secs(30));
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[derive(Clone, Copy, Debug)]
pub struct H2load {
    /// Requests with a 2xx answer.
    pub succeeded: u64,
    /// Requests that failed, timed out, or had another status.
    pub failed: u64,
}

/// Writes a program, such as a shell script. Another process writes it: until it calls execve(2), a child that another test
/// has just started holds what this process had open for writing, and the kernel starts no program that is held so
/// (ETXTBSY).
#[track_caller]
pub fn executable(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{}", path.display());
}

/// Compiles a shared library, for `LD_PRELOAD`.
pub fn library(directory: &Path, name: &str, text: &str) -> PathBuf {
    let (source, library) = (directory.join(format!("{name}.c")), directory.join(format!("{name}.so")));
    fs::write(&source, text).unwrap();
    let compiled = Command::new(program("cc"))
        .args(["-shared", "-fPIC", "-pthread", "-o"])
        .args([&library, &source])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library
}

/// Parses h2load's summary.
#[track_caller]
pub fn parse_h2load(text: &str) -> H2load {
    let number_before = |line: &str, word: &str| -> u64 {
        line.split(&[',', ':'])
            .find_map(|part| part.trim().strip_suffix(word).and_then(|number| number.trim().parse().ok()))
            .unwrap_or_else(|| panic!("no {word:?} in {line:?}"))
    };
    let requests = text
        .lines()
        .find(|line| line.starts_with("requests:"))
        .unwrap_or_else(|| panic!("h2load said: {text}"));
    let statuses = text.lines().find(|line| line.starts_with("status codes:")).unwrap();
    H2load {
        succeeded: number_before(statuses, "2xx"),
        failed: number_before(requests, "failed")
            + number_before(requests, "errored")
            + number_before(requests, "timeout")
            + number_before(statuses, "3xx")
            + number_before(statuses, "4xx")
            + number_before(statuses, "5xx"),
    }
}
