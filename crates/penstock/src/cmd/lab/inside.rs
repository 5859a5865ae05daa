//! A command, or a shell, in which `ssh` and `penstock` connect to the hosts of a lab. The lab ends with it.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::{env, fs, io};
use text::shell;

use nix::sys::signal::Signal;
use sys::privilege::with_core_limit;
use sys::process::Process;
use tokio::process::Command;

use crate::output::Failure;
use crate::signals::Signals;

#[derive(Debug)]
pub(super) enum Inside<'a> {
    /// The user's shell.
    Shell,
    /// A program and its arguments: at least one word.
    Command(&'a [OsString]),
}

impl Inside<'_> {
    /// Runs the command or shell, and exits with its exit status. `bin` contains the programs of the lab.
    pub(super) async fn run(&self, lab: &Path, bin: &Path, signals: &mut Signals) -> Result<(), Failure> {
        let (program, arguments) = self.words(lab, bin)?;
        let mut path = bin.as_os_str().to_owned();
        if let Some(others) = env::var_os("PATH") {
            path.push(":");
            path.push(others);
        }
        let mut command = Command::new(&program);
        // pdsh has several remote command modules, and ssh is not its default.
        command.args(arguments).env("PATH", path).env("LAB", lab).env("PDSH_RCMD_TYPE", "ssh");
        command.env("CLUSTERSHELL_CFGDIR", lab.join("clustershell"));
        with_core_limit(command.as_std_mut());
        let mut child = command.spawn().map_err(|error| {
            let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            crate::output::complain(&format!(
                "error: cannot run {}: {error}\n",
                shell::path(Path::new(&program))
            ));
            Failure::Status(code)
        })?;
        let process = child.id().map(Process::of_child);
        let mut asked = false;
        loop {
            tokio::select! {
                ended = child.wait() => return exit(ended?),
                signal = signals.next() => {
                    // Ctrl-C also reaches the command inside, in the foreground process group.
                    if signal == Signal::SIGINT {
                        continue;
                    }
                    if asked {
                        return Err(Failure::Status(u8::try_from(128 + signal as i32).unwrap_or(1)));
                    }
                    asked = true;
                    // An interactive shell ignores SIGTERM.
                    let signal = if matches!(self, Inside::Shell) { Signal::SIGHUP } else { signal };
                    if let Some(process) = &process {
                        process.signal(signal);
                    }
                }
            }
        }
    }

    fn words(&self, lab: &Path, bin: &Path) -> Result<(OsString, Vec<OsString>), Failure> {
        match self {
            Inside::Command([program, arguments @ ..]) => Ok((program.clone(), arguments.to_vec())),
            Inside::Command([]) => Err(Failure::usage("no command")),
            Inside::Shell => {
                let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
                let shell = PathBuf::from(shell.unwrap_or_else(|| "/bin/sh".into()));
                let bash = shell.file_name() == Some(OsStr::new("bash"));
                let arguments =
                    if bash { vec!["--rcfile".into(), rcfile(lab, bin)?.into()] } else { Vec::new() };
                Ok((shell.into(), arguments))
            }
        }
    }
}

/// Writes a bashrc that loads the user's own and then sets the lab's PATH and prompt.
fn rcfile(lab: &Path, bin: &Path) -> Result<PathBuf, Failure> {
    let path = lab.join("bashrc");
    let text = format!(
        "# Written by penstock lab.\n[ -f ~/.bashrc ] && . ~/.bashrc\nPATH={}:\"$PATH\"\nPS1=\"(lab) $PS1\"\n",
        shell::path(bin)
    );
    fs::write(&path, text)
        .map_err(|error| Failure::runtime(format_args!("cannot write {}: {error}", path.display())))?;
    Ok(path)
}

fn exit(status: std::process::ExitStatus) -> Result<(), Failure> {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::Status(code)),
        None => Err(Failure::Status(1)),
    }
}
