//! Real OpenSSH servers on loopback addresses, with keys made for the test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::shown::show;

/// A running sshd. Dropping it ends and reaps the process, and ends its sessions.
pub struct Sshd {
    /// Directory of its keys, configuration and `authorized_keys`.
    pub directory: TempDir,
    /// An address of 127.0.0.0/8.
    pub address: Ipv4Addr,
    pub port: u16,
    /// User for the log-in: the user who runs the test.
    pub user: String,
    /// Private keys that it accepts; the first is Ed25519.
    pub client_key: PathBuf,
    log: Arc<Mutex<String>>,
    process: Child,
}

impl Sshd {
    /// Starts an sshd with an Ed25519 host key and one Ed25519 client key.
    pub fn start() -> Self {
        Self::with("")
    }

    /// Starts an sshd with additional lines of `sshd_config`, which take precedence.
    pub fn with(lines: &str) -> Self {
        Self::in_directory(tempfile::tempdir().unwrap(), lines)
    }

    /// Starts an sshd for an ordinary user, also if root runs the test: sshd separates privileges only then.
    pub fn for_ordinary_user(lines: &str) -> Self {
        let mut sshd = Self::with(lines);
        if nix::unistd::geteuid().is_root() {
            sshd.user = ordinary_user();
            let open = |path: &Path, mode| {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            };
            open(sshd.directory.path(), 0o755);
            open(&sshd.directory.path().join("authorized_keys"), 0o644);
        }
        sshd
    }

    /// Starts an sshd in a directory that may have keys already: `host` and `client`, made by `ssh-keygen`.
    pub fn in_directory(directory: TempDir, lines: &str) -> Self {
        let path = directory.path();
        for name in ["host", "client"] {
            if !path.join(name).exists() {
                keygen(&path.join(name), &["-t", "ed25519"]);
            }
        }
        if !path.join("authorized_keys").exists() {
            fs::copy(path.join("client.pub"), path.join("authorized_keys")).unwrap();
        }
        let (address, port) = free_address();
        let shown = path.display();
        // For this option the last line takes precedence, unlike for others.
        let startups = if lines.contains("MaxStartups") { "" } else { "MaxStartups 200\n" };
        let sftp = if lines.contains("Subsystem") { "" } else { "Subsystem sftp internal-sftp\n" };
        let config = format!(
            "{lines}\nListenAddress {address}\nPort {port}\nHostKey {shown}/host\nAuthorizedKeysFile {shown}/authorized_keys\n\
             PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin yes\nLogLevel VERBOSE\n{startups}{sftp}PrintMotd no\n{NO_START_FILES}\n"
        );
        let file = path.join("sshd_config");
        fs::write(&file, config).unwrap();
        if nix::unistd::geteuid().is_root() {
            fs::create_dir_all("/run/sshd").unwrap();
        }
        // A background job of a script ignores SIGINT, and its children inherit that; `env` restores the default.
        let mut process = Command::new(program("env"))
            .arg("--default-signal=INT,QUIT")
            .arg(program("sshd"))
            .args(["-D", "-e", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (ready, listening) = mpsc::channel();
        let lines = BufReader::new(process.stderr.take().unwrap());
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                if line.starts_with("Server listening") {
                    let _ = ready.send(());
                }
                let mut kept = kept.lock().unwrap();
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        if listening.recv_timeout(Duration::from_secs(20)).is_err() {
            let _ = process.kill();
            panic!("sshd does not listen: {}", log.lock().unwrap());
        }
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
        let client_key = path.join("client");
        Self { directory, address, port, user, client_key, log, process }
    }

    /// The host key in one line: algorithm and base64.
    pub fn host_key(&self) -> String {
        public_line(&self.directory.path().join("host.pub"))
    }

    /// Its log so far (`LogLevel VERBOSE`).
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until its log has `word` so often, and returns how often it has. Lines come through a thread, and sshd writes
    /// some of them after it has answered its client.
    pub fn logged(&self, word: &str, count: usize) -> usize {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let found = self.log().matches(word).count();
            if found >= count || Instant::now() > deadline {
                return found;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its process id: sessions are its children.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        children_of(self.process.id()).len()
    }

    /// Processes below this sshd whose command line contains `word`, as `ps` shows them.
    pub fn processes_with(&self, word: &str) -> Vec<String> {
        processes().into_iter().filter(|line| line.contains(word)).collect()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show("sshd", &self.log());
        }
        for child in descendants(self.process.id()) {
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(child.cast_signed()),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Makes a key pair without a passphrase at `file` and `file.pub`.
pub fn keygen(file: &Path, arguments: &[&str]) {
    let made = Command::new(program("ssh-keygen"))
        .args(["-q", "-N", "", "-C", "made by a test", "-f"])
        .arg(file)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

pub fn public_line(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    text.split_ascii_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Command lines of all processes except zombies.
pub fn processes() -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push(String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    found
}

/// A loopback address, different for each call in this process, and a port of it that is free and unlikely to be taken by other
/// programs.
pub fn free_address() -> (Ipv4Addr, u16) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // 252 second numbers from 2 on, 256 third and 254 fourth ones. Two programs at the same time begin far from each other.
    const COUNT: u32 = 252 * 256 * 254;
    let number = (std::process::id().wrapping_mul(0x9E37_79B1) % COUNT + NEXT.fetch_add(1, Relaxed)) % COUNT;
    let [second, third, fourth] = [2 + number / 254 / 256, number / 254 % 256, 1 + number % 254];
    let [second, third, fourth] = [second, third, fourth].map(|byte| u8::try_from(byte).unwrap());
    let address = Ipv4Addr::new(127, second, third, fourth);
    let port = TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port();
    (address, port)
}

/// Finds a program in `PATH` or in Debian's directories for daemons.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("{name} is missing: run `make setup`"))
}

/// The user that `make setup` creates when root runs it.
#[must_use]
pub fn ordinary_user() -> String {
    let name = "penstock-test";
    assert!(
        nix::unistd::User::from_name(name).unwrap().is_some(),
        "there is no user {name}: run `make setup`"
    );
    name.to_owned()
}

/// All descendants of a process.
pub fn descendants(of: u32) -> Vec<u32> {
    let mut found = children_of(of);
    let mut next = 0;
    while let Some(child) = found.get(next).copied() {
        found.extend(children_of(child));
        next += 1;
    }
    found
}

/// Children of `parent` that were not reaped.
pub fn children_of(parent: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    listed.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// With SHLVL set, bash does not read `~/.bashrc` of this machine, which may take long, and may leave a lock when a
/// test kills bash.
const NO_START_FILES: &str = "SetEnv SHLVL=1";
