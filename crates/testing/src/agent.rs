//! Real ssh-agents with keys of the test.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A running ssh-agent. Dropping it ends and reaps the process.
pub struct RunningAgent {
    directory: tempfile::TempDir,
    process: Child,
}

impl RunningAgent {
    pub fn start() -> Self {
        Self::with_descriptors(None)
    }

    /// Starts an agent with a limit of open descriptors.
    pub fn with_descriptors(limit: Option<u32>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent");
        let limit = limit.map(|limit| format!("ulimit -n {limit}; ")).unwrap_or_default();
        let process = Command::new("sh")
            .arg("-c")
            .arg(format!("{limit}exec ssh-agent -D -a '{}'", socket.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while UnixStream::connect(&socket).is_err() {
            std::thread::yield_now();
        }
        Self { directory, process }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("agent")
    }

    /// Runs ssh-add, which must succeed.
    pub fn add(&self, arguments: &[&str]) {
        let output = self.try_add(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn try_add(&self, arguments: &[&str]) -> Output {
        let output = Command::new("ssh-add")
            .args(arguments)
            .env("SSH_AUTH_SOCK", self.socket())
            .env("HOME", self.directory.path())
            .stdin(Stdio::null())
            .output();
        output.unwrap_or_else(|error| panic!("ssh-add: {error}: run `make setup`"))
    }

    pub fn load(&self, key: &Path) {
        self.add(&["-q", key.to_str().unwrap()]);
    }

    pub fn lock(&self) {
        let script = self.directory.path().join("ask");
        std::fs::write(&script, "#!/bin/sh\necho secret\n").unwrap();
        let mut mode = std::fs::metadata(&script).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o700);
        std::fs::set_permissions(&script, mode).unwrap();
        let status = Command::new("ssh-add")
            .arg("-x")
            .env("SSH_AUTH_SOCK", self.socket())
            .env("SSH_ASKPASS", &script)
            .env("SSH_ASKPASS_REQUIRE", "force")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
