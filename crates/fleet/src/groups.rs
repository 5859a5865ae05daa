//! Reads groups of hosts from `$XDG_CONFIG_HOME/penstock/groups` (lines `name: set`), from `groups.yaml` beside it, and
//! from the sources of ClusterShell (`groups.conf` with its commands, and the directories that it names).
//! `hosts::fleet::groups` parses them.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hosts::fleet::groups::{Catalog, Conf, OWN, Upcall};
use nix::sys::signal::Signal;
use ssh::guardian::{self, Guard};
use sys::directories::{self, NoDirectory};

#[derive(Debug, Clone, Default)]
pub struct Directories {
    pub own: Option<PathBuf>,
    /// Why our own directory is not known.
    pub nowhere: Option<NoDirectory>,
    /// Directories of ClusterShell, the one with the highest priority first.
    pub clustershell: Vec<PathBuf>,
}

impl Directories {
    /// Reads the directories from the environment.
    #[must_use]
    pub fn of_user() -> Self {
        let base = directories::configuration_home();
        let named =
            std::env::var_os("CLUSTERSHELL_CFGDIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let clustershell = [
            named,
            base.as_ref().ok().map(|base| base.join("clustershell")),
            directories::home().ok().map(|home| home.join(".local/etc/clustershell")),
            Some(PathBuf::from("/etc/clustershell")),
        ];
        Self {
            own: directories::configuration().ok(),
            nowhere: base.err(),
            clustershell: clustershell.into_iter().flatten().collect(),
        }
    }
}

#[derive(Debug, Default)]
pub struct Found {
    pub catalog: Catalog,
    pub faults: Vec<String>,
    /// Faults in files of ClusterShell: warnings, since ClusterShell accepts some files that we do not.
    pub notes: Vec<String>,
}

/// Reads the files in `directories`. A fault in one group does not hide the other groups.
#[must_use]
pub fn catalog(directories: &Directories) -> Found {
    let mut found = Found::default();
    found.catalog.add_default(OWN);
    if let Some(directory) = &directories.own {
        found.own(directory);
    }
    if let Some(fault) = &directories.nowhere {
        found.notes.push(format!("our own groups are not read: {fault}"));
    }
    found.clustershell(&directories.clustershell);
    found
}

impl Found {
    fn own(&mut self, directory: &Path) {
        for name in ["groups", "groups.yaml"] {
            let path = directory.join(name);
            let place = path.display().to_string();
            self.catalog.looked_at(&place);
            let wrong = match read(&path) {
                Ok(None) => continue,
                Err(fault) => vec![fault],
                Ok(Some(text)) if name == "groups" => {
                    let wrong = self.catalog.add_flat(OWN, &place, &text).err().unwrap_or_default();
                    wrong.iter().map(ToString::to_string).collect()
                }
                Ok(Some(text)) => {
                    self.catalog.add_yaml(&place, &text).err().iter().map(ToString::to_string).collect()
                }
            };
            self.faults.extend(wrong);
        }
    }

    /// Reads the sources of ClusterShell in its own order: all `groups.conf` files are merged key by key, and the file
    /// with the highest priority wins. Relative directories start at the directory of that file.
    fn clustershell(&mut self, directories: &[PathBuf]) {
        let files: Vec<PathBuf> = directories
            .iter()
            .map(|directory| directory.join("groups.conf"))
            .filter(|file| file.is_file())
            .collect();
        let Some(first) = files.first().and_then(|file| file.parent()).map(Path::to_owned) else { return };
        let confs: Vec<Conf> = files.iter().filter_map(|file| self.conf(file, &first)).collect();
        if let Some(default) = confs.iter().find_map(|conf| conf.default.as_ref()) {
            self.catalog.add_default(default);
        }
        let main = |of: fn(&Conf) -> &Vec<String>| {
            confs.iter().map(of).find(|found| !found.is_empty()).cloned().unwrap_or_default()
        };
        for file in main(|conf| &conf.conf_directories).iter().flat_map(|within| listed(within, "conf")) {
            self.conf(&file, &first);
        }
        for file in main(|conf| &conf.auto_directories).iter().flat_map(|within| listed(within, "yaml")) {
            let place = file.display().to_string();
            let read = read(&file).and_then(|text| {
                let text = text.unwrap_or_default();
                self.catalog.add_yaml(&place, &text).map_err(|fault| fault.to_string())
            });
            self.notes.extend(read.err());
        }
    }

    fn conf(&mut self, file: &Path, config_directory: &Path) -> Option<Conf> {
        let place = file.display().to_string();
        let text = read(file).map_err(|fault| self.notes.push(fault)).ok()??;
        let directory = file.parent().unwrap_or(file).display().to_string();
        match Conf::parse(&place, &text, &directory, &config_directory.display().to_string()) {
            Ok(conf) => {
                // The default source comes from the `groups.conf` with the highest priority, which the caller adds.
                self.catalog.add_conf(&place, &Conf { default: None, ..conf.clone() });
                Some(conf)
            }
            Err(faults) => {
                self.notes.extend(faults.iter().map(ToString::to_string));
                None
            }
        }
    }
}

fn read(path: &Path) -> Result<Option<String>, String> {
    let wrong =
        |error: &dyn std::fmt::Display| format!("cannot read the groups in {}: {error}", path.display());
    // Without O_NONBLOCK the open of a FIFO without a writer would block.
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(&error)),
    };
    let kind = file.metadata().map_err(|error| wrong(&error))?.file_type();
    // The read below reports a directory as an error. A link to /dev/null counts as an empty file.
    let is_nothing = || path.canonicalize().is_ok_and(|path| path == Path::new("/dev/null"));
    if !kind.is_file() && !kind.is_dir() && !is_nothing() {
        return Err(wrong(&"it is not a regular file"));
    }
    let mut text = String::new();
    file.take(LONGEST_FILE + 1).read_to_string(&mut text).map_err(|error| wrong(&error))?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(wrong(&format!("it is longer than {} MiB, the most", LONGEST_FILE >> 20)));
    }
    Ok(Some(text))
}

/// Files in `directory` with the extension `ending`, sorted; none if `directory` does not exist.
fn listed(directory: &str, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    files.sort();
    files
}

/// Runs the command of a group source, with a time limit of ten seconds.
///
/// # Errors
/// The command cannot be started, failed, exceeded its time limit, or printed more than `MOST` bytes.
pub fn call(upcall: &Upcall) -> Result<String, String> {
    call_within(upcall, Duration::from_secs(10))
}

fn call_within(upcall: &Upcall, limit: Duration) -> Result<String, String> {
    let mut command = Command::new("sh");
    command.args(["-c", &upcall.command]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if !upcall.directory.is_empty() {
        command.current_dir(&upcall.directory);
    }
    // The guard kills the command and its children, also if this program dies.
    let (mut child, guard) = guardian::spawn(&mut command).map_err(|error| error.to_string())?;
    let until = Instant::now() + limit;
    let followed = follow(child.stdout.take()).and_then(|out| Ok((out, follow(child.stderr.take())?)));
    let (out, err) = followed.map_err(|error| {
        end(&mut child, &guard);
        format!("no thread to read what it prints: {error}")
    })?;
    let printed =
        |from: &mpsc::Receiver<Vec<u8>>| from.recv_timeout(until.saturating_duration_since(Instant::now()));
    let (Ok(out), Ok(err)) = (printed(&out), printed(&err)) else {
        end(&mut child, &guard);
        return Err(format!("still running after {} s; it was ended", limit.as_secs_f32()));
    };
    if out.len() > MOST {
        end(&mut child, &guard);
        return Err(format!("it printed more than {MOST} bytes; it was ended"));
    }
    // The command has closed its output, so a command that keeps running is killed at the time limit.
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            None => {
                end(&mut child, &guard);
                return Err(format!("still running after {} s; it was ended", limit.as_secs_f32()));
            }
        }
    };
    if status.success() {
        return Ok(String::from_utf8_lossy(&out).into_owned());
    }
    let said = String::from_utf8_lossy(&err);
    Err(format!("{status}: {}", said.lines().next().unwrap_or_default()))
}

/// Reads a stream to its end, but at most one byte more than [`MOST`].
fn follow(stream: Option<impl Read + Send + 'static>) -> io::Result<mpsc::Receiver<Vec<u8>>> {
    let (tell, told) = mpsc::channel();
    std::thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            let _ = stream.take(MOST as u64 + 1).read_to_end(&mut bytes);
        }
        let _ = tell.send(bytes);
    })?;
    Ok(told)
}

fn end(child: &mut Child, guard: &Guard) {
    guard.signal(Signal::SIGKILL);
    let _ = child.wait();
}

/// Limit of a file of groups, in bytes.
const LONGEST_FILE: u64 = 16 << 20;
/// Limit of the output of a group source's command, in bytes.
const MOST: usize = 4 << 20;

#[cfg(test)]
mod tests;
