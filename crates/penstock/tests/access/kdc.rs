//! A Kerberos realm in a directory, with its own key distribution centre: of MIT, or of Heimdal.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use testing::server::run_to_end;
use testing::{eventually, secs, tools};

/// `TEST.LOCAL` with the users `ann` and `eve`, whose passwords are `secret`, and the services `host/localhost` (in the
/// keytab) and `other/localhost` (in another one).
pub(crate) struct Realm {
    pub(crate) dir: TempDir,
    center: Center,
    kdc: Child,
    /// How far the clock of the realm is from that of the machine, in the words of faketime.
    clock: Option<&'static str>,
}

/// Whose key distribution centre it is. Users have the programs and the library of MIT with both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Center {
    Mit,
    Heimdal,
}

impl Realm {
    pub(crate) fn start() -> Self {
        Self::of(Center::Mit, None)
    }

    pub(crate) fn of(center: Center, clock: Option<&'static str>) -> Self {
        let dir = tempfile::Builder::new().prefix("krb").tempdir().unwrap();
        let port = testing::port::free();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let database = match center {
            Center::Mit => String::new(),
            Center::Heimdal => format!(
                "[kdc]\ndatabase = {{\ndbname = {}\nrealm = TEST.LOCAL\nmkey_file = {}\nacl_file = {}\nlog_file = {}\n}}\n",
                at("db"),
                at("stash"),
                at("acl"),
                at("log")
            ),
        };
        fs::write(
            at("krb5.conf"),
            format!(
                "[libdefaults]\ndefault_realm=TEST.LOCAL\ndns_lookup_kdc=false\ndns_lookup_realm=false\n\
                 dns_canonicalize_hostname=false\nrdns=false\nudp_preference_limit=1\n\
                 [realms]\nTEST.LOCAL = {{\nkdc=127.0.0.1:{port}\n}}\n[domain_realm]\nlocalhost=TEST.LOCAL\n{database}"
            ),
        )
        .unwrap();
        fs::write(
            at("kdc.conf"),
            format!(
                "[kdcdefaults]\nkdc_listen=\"\"\nkdc_tcp_listen=127.0.0.1:{port}\n[realms]\nTEST.LOCAL = {{\n\
                 database_name={}\nkey_stash_file={}\nacl_file={}\n}}\n",
                at("db"),
                at("stash"),
                at("acl")
            ),
        )
        .unwrap();
        match center {
            Center::Mit => {
                let tool = mit(dir.path(), "kdb5_util", clock);
                ran(tool, &["create", "-s", "-r", "TEST.LOCAL", "-P", "master"]);
            }
            Center::Heimdal => {
                let key = format!("--key-file={}", at("stash"));
                ran(heimdal(dir.path(), "usr/sbin/kstash", clock), &["--random-key", &key]);
                let limits = ["--realm-max-ticket-life=unlimited", "--realm-max-renewable-life=unlimited"];
                ran(
                    administration(dir.path(), clock),
                    &[&["init"][..], &limits[..], &["TEST.LOCAL"][..]].concat(),
                );
            }
        }
        for (name, keytab) in [
            ("ann", None),
            ("eve", None),
            ("host/localhost", Some("keytab")),
            ("other/localhost", Some("other-keytab")),
        ] {
            add_principal(center, dir.path(), name, keytab, clock);
        }
        let mut command = match center {
            Center::Mit => {
                let mut command = mit(dir.path(), "krb5kdc", clock);
                command.arg("-n");
                command
            }
            Center::Heimdal => {
                let mut command = heimdal(dir.path(), "usr/lib/heimdal-servers/kdc", clock);
                command.arg(format!("--config-file={}", at("krb5.conf")));
                command.args(["--addresses=127.0.0.1", &format!("--ports={port}/tcp")]);
                command
            }
        };
        let kdc = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let realm = Self { kdc: kdc.spawn().unwrap(), dir, center, clock };
        eventually("the KDC", secs(20), || TcpStream::connect(("127.0.0.1", port)).ok());
        for name in ["ann", "eve"] {
            let mut command = program_at(clock, tools::program("kinit"));
            realm.as_user(&mut command, name);
            let command = command.args(["-l", "1h", name]).stdin(Stdio::piped()).stdout(Stdio::null());
            let mut kinit = command.spawn().unwrap();
            kinit.stdin.take().unwrap().write_all(b"secret\n").unwrap();
            assert!(kinit.wait().unwrap().success(), "kinit {name}");
        }
        realm
    }

    /// Makes a further service, with its key in the keytab.
    pub(crate) fn service(&self, name: &str) {
        add_principal(self.center, self.dir.path(), name, Some("keytab"), self.clock);
    }

    /// Runs a command with the tickets of a user.
    pub(crate) fn as_user(&self, command: &mut Command, name: &str) {
        environment(command, self.dir.path());
        command.env("KRB5CCNAME", format!("FILE:{}", self.dir.path().join(name).display()));
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A token of a user for a service, in Base64, made by the library of Python. Without `bindings` it has none.
    pub(crate) fn token(&self, user: &str, service: &str, bindings: Option<&[u8]>) -> Vec<u8> {
        self.token_at(self.clock, user, service, bindings)
    }

    /// The same by a clock of the user's own.
    pub(crate) fn token_at(
        &self,
        clock: Option<&str>,
        user: &str,
        service: &str,
        bindings: Option<&[u8]>,
    ) -> Vec<u8> {
        use base64ct::{Base64, Encoding};
        const SCRIPT: &str = r#"
import base64, gssapi, sys
from gssapi.raw import ChannelBindings
service, bindings = sys.argv[1:]
name = gssapi.Name(service, gssapi.NameType.hostbased_service)
want = gssapi.RequirementFlag
# Cyrus SASL refuses a context without the second.
flags = want.mutual_authentication | want.out_of_sequence_detection | want.replay_detection | want.integrity
bindings = None if bindings == "-" else ChannelBindings(application_data=bytes.fromhex(bindings))
context = gssapi.SecurityContext(name=name, usage="initiate", flags=flags, channel_bindings=bindings)
print(base64.b64encode(context.step()).decode())
"#;
        let mut command = program_at(clock, "/usr/bin/python3");
        self.as_user(&mut command, user);
        let hex =
            bindings.map_or("-".to_owned(), |bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect());
        command.args(["-c", SCRIPT, service, &hex]).stdin(Stdio::null());
        let output = run_to_end(&mut command, secs(30));
        assert!(output.status.success(), "{output:?}");
        Base64::decode_vec(String::from_utf8(output.stdout).unwrap().trim()).unwrap()
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        // It may have ended. The processes that it has started end with it.
        let _ = self.kdc.kill();
        let _ = self.kdc.wait();
    }
}

fn add_principal(center: Center, dir: &Path, name: &str, keytab: Option<&str>, clock: Option<&str>) {
    let keytab = keytab.map(|file| dir.join(file).display().to_string());
    match (center, &keytab) {
        (Center::Mit, None) => {
            ran(mit(dir, "kadmin.local", clock), &["-q", &format!("addprinc -pw secret {name}")])
        }
        (Center::Mit, Some(keytab)) => {
            for query in [format!("addprinc -randkey {name}"), format!("ktadd -k {keytab} {name}")] {
                ran(mit(dir, "kadmin.local", clock), &["-q", &query]);
            }
        }
        (Center::Heimdal, None) => {
            ran(administration(dir, clock), &["add", "--password=secret", "--use-defaults", name]);
        }
        (Center::Heimdal, Some(keytab)) => {
            ran(administration(dir, clock), &["add", "--random-key", "--use-defaults", name]);
            ran(administration(dir, clock), &["ext_keytab", "-k", keytab, name]);
        }
    }
}

#[track_caller]
fn ran(mut command: Command, arguments: &[&str]) {
    let output = run_to_end(command.args(arguments).stdin(Stdio::null()), secs(30));
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

fn mit(dir: &Path, name: &str, clock: Option<&str>) -> Command {
    let mut command = program_at(clock, tools::program(name));
    environment(&mut command, dir);
    command
}

/// A program of Heimdal, whose packages are unpacked beside those of MIT: they cannot be installed together.
fn heimdal(dir: &Path, path: &str, clock: Option<&str>) -> Command {
    let root = tools::heimdal();
    let libraries = root.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let mut command = program_at(clock, root.join(path));
    environment(&mut command, dir);
    let all = std::env::join_paths([libraries.clone(), libraries.join("heimdal")]).unwrap();
    command.env("LD_LIBRARY_PATH", all);
    command
}

fn administration(dir: &Path, clock: Option<&str>) -> Command {
    let mut command = heimdal(dir, "usr/bin/kadmin.heimdal", clock);
    command.arg("-l").arg(format!("--config-file={}", dir.join("krb5.conf").display()));
    command
}

/// A program by a clock that is off by so much.
fn program_at(clock: Option<&str>, program: impl AsRef<OsStr>) -> Command {
    match clock {
        None => Command::new(program),
        Some(offset) => {
            let mut command = Command::new(tools::program("faketime"));
            command.args(["-f", offset]).arg(program);
            command
        }
    }
}

fn environment(command: &mut Command, dir: &Path) {
    let at = |name: &str| dir.join(name);
    command
        .env("KRB5_CONFIG", at("krb5.conf"))
        .env("KRB5_KDC_PROFILE", at("kdc.conf"))
        .env("KRB5RCACHEDIR", dir)
        .env_remove("KRB5CCNAME");
}
