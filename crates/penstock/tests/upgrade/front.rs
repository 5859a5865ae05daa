//! A server that may be upgraded, with all the processes that follow the first.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testing::server::Setup;
use testing::{Server, eventually, secs};

/// The first process and its followers. All are ended on drop.
pub(crate) struct Front {
    pub(crate) server: Server,
    followers: Vec<i32>,
}

pub(crate) fn config(listener: &str, backend: &str) -> String {
    format!(
        "[process]\nstate-directory = \"@DIR@/state\"\nstate-interval = \"300ms\"\nworkers = 2\n\
         [control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n{listener}\
         [pool.app]\nhealth = \"off\"\nbackends = [\"{backend}\"]\n"
    )
}

impl Front {
    /// Starts a server that may run the programs in `@DIR@/programs`.
    #[track_caller]
    pub(crate) fn start(config: &str) -> Self {
        let setup = Setup::new(config);
        let programs = setup.dir().join("programs");
        fs::create_dir(&programs).unwrap();
        fs::set_permissions(&programs, fs::Permissions::from_mode(0o755)).unwrap();
        let file = setup.dir().join("penstock.toml");
        let (file, programs) = (file.to_str().unwrap().to_owned(), programs.to_str().unwrap().to_owned());
        let server = setup.arguments(&["serve", "--config", &file, "--allow-upgrade", &programs]).start();
        Self { server, followers: Vec::new() }
    }

    pub(crate) fn of(server: Server) -> Self {
        Self { server, followers: Vec::new() }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.server.dir.path()
    }

    /// Process of the newest version.
    pub(crate) fn pid(&self) -> i32 {
        self.followers.last().copied().unwrap_or_else(|| self.server.pid().as_raw())
    }

    /// Upgrades, which must succeed. Returns the answer.
    #[track_caller]
    pub(crate) fn upgrade(&mut self, arguments: &[&str]) -> Value {
        let answer = self.server.ctl_json(&[&["upgrade"], arguments].concat());
        assert_eq!(answer["upgraded"], true, "{answer}");
        self.followers.push(i32::try_from(answer["pid"].as_i64().unwrap()).unwrap());
        answer
    }

    /// Ends a process, that was found to serve, at the end.
    pub(crate) fn follow(&mut self, pid: i32) {
        self.followers.push(pid);
    }

    /// Tries to upgrade, which must fail. Returns the error.
    #[track_caller]
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        self.server.refused(&[&["upgrade"], arguments].concat())
    }

    /// A program in the directory from which programs may be run.
    pub(crate) fn program(&self, name: &str, text: &[u8]) -> PathBuf {
        let path = self.dir().join("programs").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// The process that answers the control socket.
    #[track_caller]
    pub(crate) fn serving(&self) -> i32 {
        i32::try_from(self.server.ctl_json(&["status"])["pid"].as_i64().unwrap()).unwrap()
    }

    /// Waits until a process has ended.
    #[track_caller]
    pub(crate) fn wait_gone(&self, pid: i32) {
        eventually(&format!("{pid} has ended"), secs(20), || (!is_running(pid)).then_some(()));
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        for pid in self.followers.drain(..).filter(|pid| is_running(*pid)) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Whether a process of this number runs, which is a penstock. One that its parent has not waited for does not.
pub(crate) fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
    stat.contains("(penstock)") && !matches!(state, None | Some(None | Some('Z')))
}
