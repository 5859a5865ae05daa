//! A Kerberos realm in a directory, with its own key distribution centre.

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
    kdc: Child,
}

impl Realm {
    pub(crate) fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("krb").tempdir().unwrap();
        let port = testing::port::free();
        let at = |name: &str| dir.path().join(name).display().to_string();
        fs::write(
            at("krb5.conf"),
            format!(
                "[libdefaults]\ndefault_realm=TEST.LOCAL\ndns_lookup_kdc=false\ndns_lookup_realm=false\n\
                 dns_canonicalize_hostname=false\nrdns=false\nudp_preference_limit=1\n\
                 [realms]\nTEST.LOCAL = {{\nkdc=127.0.0.1:{port}\n}}\n[domain_realm]\nlocalhost=TEST.LOCAL\n"
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
        let tool = |name: &str, arguments: &[&str]| {
            let mut command = Command::new(tools::program(name));
            environment(&mut command, dir.path());
            let output = run_to_end(command.args(arguments).stdin(Stdio::null()), secs(30));
            assert!(output.status.success(), "{name} {arguments:?}: {output:?}");
        };
        tool("kdb5_util", &["create", "-s", "-r", "TEST.LOCAL", "-P", "master"]);
        for query in [
            "addprinc -pw secret ann".to_owned(),
            "addprinc -pw secret eve".to_owned(),
            "addprinc -randkey host/localhost".to_owned(),
            "addprinc -randkey other/localhost".to_owned(),
            format!("ktadd -k {} host/localhost", at("keytab")),
            format!("ktadd -k {} other/localhost", at("other-keytab")),
        ] {
            tool("kadmin.local", &["-q", &query]);
        }
        let mut command = Command::new(tools::program("krb5kdc"));
        environment(&mut command, dir.path());
        let kdc = command.arg("-n").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let realm = Self { kdc: kdc.spawn().unwrap(), dir };
        eventually("the KDC", secs(20), || TcpStream::connect(("127.0.0.1", port)).ok());
        for name in ["ann", "eve"] {
            let mut command = Command::new(tools::program("kinit"));
            realm.as_user(&mut command, name);
            let mut kinit = command.arg(name).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            kinit.stdin.take().unwrap().write_all(b"secret\n").unwrap();
            assert!(kinit.wait().unwrap().success(), "kinit {name}");
        }
        realm
    }

    /// Makes a further service, with its key in the keytab.
    pub(crate) fn service(&self, name: &str) {
        let keytab = self.file("keytab").display().to_string();
        for query in [format!("addprinc -randkey {name}"), format!("ktadd -k {keytab} {name}")] {
            let mut command = Command::new(tools::program("kadmin.local"));
            environment(&mut command, self.dir.path());
            let output = run_to_end(command.args(["-q", &query]).stdin(Stdio::null()), secs(30));
            assert!(output.status.success(), "{output:?}");
        }
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
        use base64ct::{Base64, Encoding};
        const SCRIPT: &str = r#"
import base64, gssapi, sys
from gssapi.raw import ChannelBindings
service, bindings = sys.argv[1:]
name = gssapi.Name(service, gssapi.NameType.hostbased_service)
flags = gssapi.RequirementFlag.mutual_authentication
bindings = None if bindings == "-" else ChannelBindings(application_data=bytes.fromhex(bindings))
context = gssapi.SecurityContext(name=name, usage="initiate", flags=flags, channel_bindings=bindings)
print(base64.b64encode(context.step()).decode())
"#;
        let mut command = Command::new("/usr/bin/python3");
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
        // It may have ended.
        let _ = self.kdc.kill();
        let _ = self.kdc.wait();
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
