//! Makes `penstock serve` a service of systemd on a machine without packages, and takes that back. The unit and the first
//! configuration are those of the Debian package.
//!
//! [`install`] and [`remove`] look and return the steps that are missing; [`perform`] does one. What is done already is no
//! step, so that both can be repeated.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::confinement::DEFAULT_USER;

const UNIT: &str = include_str!("../../../packaging/penstock.service");
const CONFIGURATION: &str = include_str!("../../../packaging/penstock.toml");

/// First line of a unit that [`install`] has written.
const MARK: &str = "# Written by `penstock service install`; `penstock service remove` takes it away.\n";

const NAME: &str = "penstock.service";
const CONFIGURATION_FILE: &str = "etc/penstock/penstock.toml";

/// Where units of packages are: one there is not ours to replace.
const OF_PACKAGES: [&str; 2] = ["usr/lib/systemd/system", "lib/systemd/system"];

/// Directories in which the service could not read its program: ProtectHome= and PrivateTmp= of the unit.
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error(
        "systemd does not run on this machine\n  hint: let the program that starts services here start `penstock serve /etc/penstock/penstock.toml`"
    )]
    NoSystemd,
    #[error("a package has installed {}: it is that package's to change or remove", .0.display())]
    OfPackage(PathBuf),
    #[error("{} was not written by `penstock service install`, so it stays as it is", .0.display())]
    NotOurs(PathBuf),
    #[error("the service could not read {}: directories of users and of temporary files are closed to it\n  hint: install -m 755 {} /usr/local/bin/penstock && /usr/local/bin/penstock service install", .0.display(), text::shell::path(.0))]
    Hidden(PathBuf),
    #[error("cannot {step}")]
    Step { step: String, source: io::Error },
    #[error("`{command}` failed: {said}")]
    Command { command: String, said: String },
}

/// One thing that is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Write { path: PathBuf, text: String },
    Remove { path: PathBuf },
    Run { words: Vec<&'static str> },
}

impl Step {
    /// What a shell would do.
    pub fn shown(&self) -> String {
        match self {
            Self::Write { path, text } => {
                format!("write {} ({})", path.display(), text::units::count(text.lines().count(), "line"))
            }
            Self::Remove { path } => format!("rm {}", text::shell::path(path)),
            Self::Run { words } => {
                words.iter().map(|word| text::shell::word(word)).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

/// The machine below a directory, which is `/` but for tests.
#[derive(Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// This machine.
    ///
    /// # Errors
    /// systemd does not run.
    pub fn here() -> Result<Self, ServiceError> {
        let machine = Self { root: "/".into() };
        if machine.at("run/systemd/system").is_dir() { Ok(machine) } else { Err(ServiceError::NoSystemd) }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn unit(&self) -> PathBuf {
        self.at("etc/systemd/system").join(NAME)
    }

    /// The unit that is there, if it is ours; an error if it is not.
    fn written(&self) -> Result<Option<String>, ServiceError> {
        for directory in OF_PACKAGES {
            let path = self.at(directory).join(NAME);
            if path.exists() {
                return Err(ServiceError::OfPackage(path));
            }
        }
        let path = self.unit();
        match fs::read_to_string(&path) {
            Ok(text) if text.starts_with(MARK) => Ok(Some(text)),
            Ok(_) => Err(ServiceError::NotOurs(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ServiceError::Step { step: format!("read {}", path.display()), source }),
        }
    }
}

/// Steps that make `binary` the service, and start it now and at each start of the machine.
pub fn install(machine: &Machine, binary: &Path) -> Result<Vec<Step>, ServiceError> {
    let written = machine.written()?;
    if HIDDEN.iter().any(|directory| binary.starts_with(directory)) {
        return Err(ServiceError::Hidden(binary.to_owned()));
    }
    let unit = unit(binary);
    let mut steps = Vec::new();
    if matches!(sys::privilege::user(DEFAULT_USER), Ok(None)) {
        let words = [
            "useradd",
            "--system",
            "--home-dir",
            "/nonexistent",
            "--shell",
            "/usr/sbin/nologin",
            DEFAULT_USER,
        ];
        steps.push(Step::Run { words: words.to_vec() });
    }
    let configuration = machine.at(CONFIGURATION_FILE);
    if !configuration.exists() {
        steps.push(Step::Write { path: configuration, text: CONFIGURATION.to_owned() });
    }
    match written {
        Some(text) if text == unit => {}
        Some(_) => {
            steps.push(Step::Write { path: machine.unit(), text: unit });
            steps.push(Step::Run { words: vec!["systemctl", "daemon-reload"] });
        }
        None => {
            steps.push(Step::Write { path: machine.unit(), text: unit });
            steps.push(Step::Run { words: vec!["systemctl", "daemon-reload"] });
            steps.push(Step::Run { words: vec!["systemctl", "enable", "--now", NAME] });
        }
    }
    Ok(steps)
}

/// Steps that end the service and take the unit away. The configuration, the state and the user stay.
pub fn remove(machine: &Machine) -> Result<Vec<Step>, ServiceError> {
    if machine.written()?.is_none() {
        return Ok(Vec::new());
    }
    Ok(vec![
        Step::Run { words: vec!["systemctl", "disable", "--now", NAME] },
        Step::Remove { path: machine.unit() },
        Step::Run { words: vec!["systemctl", "daemon-reload"] },
    ])
}

/// Does one step.
pub fn perform(step: &Step) -> Result<(), ServiceError> {
    let wrong = |source| ServiceError::Step { step: step.shown(), source };
    match step {
        Step::Write { path, text } => {
            let directory = path.parent().unwrap_or(path);
            fs::create_dir_all(directory).map_err(wrong)?;
            // A start in between finds the old file or the new one, never a part.
            let new = path.with_extension("new");
            fs::write(&new, text).map_err(wrong)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).map_err(wrong)?;
            fs::rename(&new, path).map_err(wrong)
        }
        Step::Remove { path } => fs::remove_file(path).map_err(wrong),
        Step::Run { words } => {
            let output = Command::new(words[0]).args(&words[1..]).output().map_err(wrong)?;
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            if output.status.success() {
                Ok(())
            } else {
                Err(ServiceError::Command { command: step.shown(), said })
            }
        }
    }
}

/// The unit of the package, for a program at another place.
fn unit(binary: &Path) -> String {
    // systemd reads `%` and quotes in its own way.
    let path = binary.display().to_string().replace('%', "%%");
    let path = if path.contains([' ', '"', '\\']) { format!("{path:?}") } else { path };
    let text = UNIT.lines().skip_while(|line| line.starts_with('#')).map(|line| {
        match line.strip_prefix("Documentation=") {
            Some(_) => String::new(),
            None => line.replace("/usr/bin/penstock", &path),
        }
    });
    let lines: Vec<_> = text.filter(|line| !line.is_empty()).collect();
    format!("{MARK}{}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> (tempfile::TempDir, Machine) {
        let directory = tempfile::tempdir().unwrap();
        let machine = Machine { root: directory.path().to_owned() };
        (directory, machine)
    }

    /// The files that steps write; commands are left out.
    fn write(steps: &[Step]) {
        for step in steps.iter().filter(|step| !matches!(step, Step::Run { .. })) {
            perform(step).unwrap();
        }
    }

    #[test]
    fn a_second_installation_has_nothing_to_do_and_a_removal_leaves_the_configuration() {
        let (_directory, machine) = machine();
        let binary = Path::new("/opt/penstock/penstock");
        let steps = install(&machine, binary).unwrap();
        assert_eq!(steps.last().unwrap().shown(), "systemctl enable --now penstock.service");
        write(&steps);
        let unit = fs::read_to_string(machine.unit()).unwrap();
        assert!(
            unit.contains("\nExecStart=/opt/penstock/penstock serve --config /etc/penstock/penstock.toml\n"),
            "{unit}"
        );
        assert!(!unit.contains("/usr/bin/penstock") && unit.contains("\nUser=penstock\n"), "{unit}");
        let rest = install(&machine, binary).unwrap();
        assert!(
            rest.iter().all(|step| matches!(step, Step::Run { words } if words[0] == "useradd")),
            "{rest:?}"
        );

        // What the operator wrote stays, and a new version changes the unit only.
        let configuration = machine.at(CONFIGURATION_FILE);
        fs::write(&configuration, "# mine\n").unwrap();
        let steps = install(&machine, Path::new("/opt/other/penstock")).unwrap();
        write(&steps);
        assert!(fs::read_to_string(machine.unit()).unwrap().contains("/opt/other/penstock"));
        write(&remove(&machine).unwrap());
        assert!(!machine.unit().exists());
        assert_eq!(fs::read_to_string(configuration).unwrap(), "# mine\n");
        assert_eq!(remove(&machine).unwrap(), []);
    }

    #[test]
    fn units_of_packages_and_of_operators_are_left_alone() {
        let (_directory, machine) = machine();
        let binary = Path::new("/usr/local/bin/penstock");
        fs::create_dir_all(machine.unit().parent().unwrap()).unwrap();
        fs::write(machine.unit(), "[Service]\nExecStart=/bin/true\n").unwrap();
        for refused in [install(&machine, binary), remove(&machine)] {
            assert!(matches!(refused, Err(ServiceError::NotOurs(_))), "{refused:?}");
        }
        let package = machine.at(OF_PACKAGES[0]);
        fs::create_dir_all(&package).unwrap();
        fs::write(package.join(NAME), UNIT).unwrap();
        for refused in [install(&machine, binary), remove(&machine)] {
            assert!(matches!(refused, Err(ServiceError::OfPackage(_))), "{refused:?}");
        }
    }

    #[test]
    fn a_program_that_the_service_could_not_read_is_refused_with_the_place_for_it() {
        let (_directory, machine) = machine();
        for place in ["/home/ann/penstock", "/tmp/penstock", "/root/bin/penstock"] {
            let refused = install(&machine, Path::new(place)).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("install -m 755 {place} /usr/local/bin/penstock")),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_configuration_of_the_package_is_good_and_opens_nothing_to_the_world() {
        let source = config::Source { name: "penstock.toml".into(), text: CONFIGURATION.to_owned() };
        let loaded = config::load(&source, &config::Environment::default())
            .unwrap_or_else(|faults| panic!("{faults}"));
        assert!(loaded.warnings.is_empty(), "{}", loaded.warnings.render());
        let config = loaded.config;
        let binds = config.listeners.iter().flat_map(|listener| &listener.binds);
        for bind in binds.chain(config.admin.iter().map(|admin| &admin.bind)) {
            assert!(bind.to_string().starts_with("127.0.0.1:"), "{bind} is open to other machines");
        }
    }
}
