//! Where groups of hosts come from: `$XDG_CONFIG_HOME/penstock/groups` (lines `name: set`) and `groups.yaml` beside it, and
//! what ClusterShell knows (`groups.conf` with its commands, the directories that it names). What they say is decided by
//! `logic::fleet::groups`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use logic::fleet::groups::{Catalog, Conf, OWN, Upcall};
use nix::sys::signal::Signal;
use ssh::guardian::{self, Guard};

/// The directories with files of groups.
#[derive(Debug, Clone, Default)]
pub struct Directories {
    /// Ours.
    pub own: Option<PathBuf>,
    /// Those of ClusterShell, the most important first.
    pub clustershell: Vec<PathBuf>,
}

impl Directories {
    /// As the environment says, for us and for ClusterShell.
    #[must_use]
    pub fn of_user() -> Self {
        let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = set("HOME");
        let base = set("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
        let clustershell = [
            set("CLUSTERSHELL_CFGDIR"),
            base.as_ref().map(|base| base.join("clustershell")),
            home.map(|home| home.join(".local/etc/clustershell")),
            Some(PathBuf::from("/etc/clustershell")),
        ];
        Self {
            own: base.map(|base| base.join("penstock")),
            clustershell: clustershell.into_iter().flatten().collect(),
        }
    }
}

/// All groups, and what is wrong with their files.
#[derive(Debug, Default)]
pub struct Found {
    /// What is right.
    pub catalog: Catalog,
    /// Faults in our own files.
    pub faults: Vec<String>,
    /// Faults in files of ClusterShell, which are not ours to be strict about.
    pub notes: Vec<String>,
}

/// Reads the files in `directories`. Faults in them come as lines to show; what is right is taken.
#[must_use]
pub fn catalog(directories: &Directories) -> Found {
    let mut found = Found::default();
    found.catalog.add_default(OWN);
    if let Some(directory) = &directories.own {
        found.own(directory);
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

    /// As ClusterShell does: all of its `groups.conf` together, what is more important winning key by key; the directories in
    /// them relative to the most important one that there is.
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

    /// Takes the sources of one file.
    fn conf(&mut self, file: &Path, config_directory: &Path) -> Option<Conf> {
        let place = file.display().to_string();
        let text = read(file).map_err(|fault| self.notes.push(fault)).ok()??;
        let directory = file.parent().unwrap_or(file).display().to_string();
        match Conf::parse(&place, &text, &directory, &config_directory.display().to_string()) {
            Ok(conf) => {
                // Which source is the default is for the most important file to say.
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
    // Opening a pipe that nobody writes to would wait for ever.
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
    let mut file = match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(&error)),
    };
    let kind = file.metadata().map_err(|error| wrong(&error))?.file_type();
    // A directory says so itself; what leads to /dev/null is empty.
    let is_nothing = || path.canonicalize().is_ok_and(|path| path == Path::new("/dev/null"));
    if !kind.is_file() && !kind.is_dir() && !is_nothing() {
        return Err(wrong(&"it is no regular file"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| wrong(&error))?;
    Ok(Some(text))
}

/// The files in a directory whose names end so, in order; none if there is no such directory.
fn listed(directory: &str, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    files.sort();
    files
}

/// Runs the command of a group source, for at most ten seconds.
///
/// # Errors
/// It cannot be started, did not end with 0 or in time, or printed too much.
pub fn call(upcall: &Upcall) -> Result<String, String> {
    call_within(upcall, Duration::from_secs(10))
}

fn call_within(upcall: &Upcall, limit: Duration) -> Result<String, String> {
    let mut command = Command::new("sh");
    command.args(["-c", &upcall.command]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if !upcall.directory.is_empty() {
        command.current_dir(&upcall.directory);
    }
    // All that it starts can be ended with it, and is if we end before.
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
    // It has closed its output; one that runs on all the same is not waited for.
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

/// Reads a stream to its end, or a little further than [`MOST`].
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

/// Bytes that the command of a source may print.
const MOST: usize = 4 << 20;

#[cfg(test)]
mod tests;
