//! A store with tokens whose secrets the test knows.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use access::otp::yubico::{Counter, Press, Secret};
use testing::server::{binary, clear_environment};

/// Directory with a store and its key file.
pub(crate) struct Tokens {
    pub(crate) directory: PathBuf,
    _own: Option<tempfile::TempDir>,
}

impl Tokens {
    pub(crate) fn new() -> Self {
        let own = tempfile::tempdir().unwrap();
        let tokens = Self { directory: own.path().to_owned(), _own: Some(own) };
        tokens.said(&["init"], "");
        tokens
    }

    /// In the directory of a server.
    pub(crate) fn below(directory: &Path) -> Self {
        let tokens = Self { directory: directory.to_owned(), _own: None };
        tokens.said(&["init"], "");
        tokens
    }

    pub(crate) fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(binary());
        clear_environment(&mut command);
        command.arg("otp").arg("--store").arg(self.directory.join("otp"));
        command.arg("--key-file").arg(self.directory.join("otp.key")).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that wants no input may have ended.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    pub(crate) fn said(&self, arguments: &[&str], input: &str) -> String {
        let output = self.run(arguments, input);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    pub(crate) fn refused(&self, arguments: &[&str], input: &str) -> String {
        let output = self.run(arguments, input);
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Enrols a YubiKey.
    pub(crate) fn yubikey(&self, name: &str, user: Option<&str>) -> YubiKey {
        let mut arguments = vec!["enrol", "yubikey", "--secret-file", "-"];
        if let Some(user) = user {
            arguments.extend(["--user", user]);
        }
        self.said(&arguments, &format!("{name} 0123456789ab 87fe7c2b3d4f5a6b8c9d0e1f2a3b4c5d\n"));
        YubiKey::named(name)
    }
}

/// A key in software.
pub(crate) struct YubiKey {
    name: String,
}

impl YubiKey {
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    pub(crate) fn otp(&self, session: u16, press: u8) -> String {
        let key =
            [0x87, 0xfe, 0x7c, 0x2b, 0x3d, 0x4f, 0x5a, 0x6b, 0x8c, 0x9d, 0x0e, 0x1f, 0x2a, 0x3b, 0x4c, 0x5d];
        let secret = Secret::new(key, [0x01, 0x23, 0x45, 0x67, 0x89, 0xab]);
        let counter = Counter { session, press };
        secret.typed_by(&self.name, Press { counter, timestamp: 0x04_02_03, random: 0xec0b })
    }
}
