//! A server with control over the network, its users and its certificates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DistinguishedName, DnType};
use testing::pki::{Authority, Pair, Pki, Time};
use testing::server::Setup;
use testing::{Server, secs};

/// `ann` with the password `pencil` may operate, `bob` with `eraser` may view. Made by another program:
/// `printf pencil | gsasl --mkpasswd --mechanism SCRAM-SHA-256 ...`.
pub(crate) struct Site {
    pub(crate) server: Server,
    pub(crate) port: u16,
    pub(crate) clients: Authority,
}

pub(crate) fn users() -> String {
    use access::sasl::Credential;
    let of = |password: &str, salt: &[u8]| {
        Credential::derive(password, salt, 4096.try_into().unwrap()).unwrap().to_string()
    };
    format!(
        "# people\nann groups=ops scram={}\nbob role=view scram={}\nnobody scram={}\n",
        of("pencil", b"salt of ann....."),
        of("eraser", b"salt of bob....."),
        of("nothing", b"salt of nobody..")
    )
}

impl Site {
    /// `more` are further keys of `[control]`.
    pub(crate) fn start(more: &str) -> Self {
        Self::with(more, "", &[])
    }

    /// The same with further sections, and variables of the environment.
    pub(crate) fn with(more: &str, sections: &str, variables: &[(&str, &str)]) -> Self {
        Self::prepared(more, sections, variables, |_| ())
    }

    /// The same after `prepare` has made files in the directory of the server.
    pub(crate) fn prepared(
        more: &str,
        sections: &str,
        variables: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let mut setup = Setup::new("");
        for (name, value) in variables {
            setup = setup.env(name, value);
        }
        let dir = setup.dir().to_owned();
        let certs = dir.join("certs");
        let pki = Pki::new(&dir);
        fs::create_dir(&certs).unwrap();
        fs::create_dir(dir.join("state")).unwrap();
        let pair = pki.issue("localhost", &["localhost"], Time::Now);
        fs::copy(&pair.certificate, certs.join("localhost.crt")).unwrap();
        fs::copy(&pair.key, certs.join("localhost.key")).unwrap();
        let clients = Authority::new("clients");
        fs::write(dir.join("clients.pem"), clients.pem()).unwrap();
        let file = dir.join("users");
        fs::write(&file, users()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        prepare(&dir);
        let config = format!(
            "[control]\nsocket = \"@DIR@/control.sock\"\nlisten = \"127.0.0.1:0\"\nusers = \"@DIR@/users\"\n\
             roles = {{ operate = [\"group:ops\"], admin = [\"certificate:root\", \"principal:ann@TEST.LOCAL\"] }}\n{more}\n\
             [control.tls]\ncertificates = \"@DIR@/certs\"\n\
             client-certificates = {{ ca = \"@DIR@/clients.pem\", mode = \"request\" }}\n\
             [access-log]\ntarget = \"off\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
             [pool.app]\nbackends = [\"127.0.0.1:9\"]\nhealth = \"off\"\n{sections}"
        );
        let server = setup.configured(&config).start();
        let line = server.stderr.wait_for("listening control over the network", secs(5));
        let port = line.rsplit(':').next().unwrap().trim().parse().unwrap();
        Self { server, port, clients }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.server.dir.path().join(name)
    }

    /// A client certificate with this common name.
    pub(crate) fn certificate(&self, name: &str) -> Pair {
        let dir = self.file("client-certificates");
        fs::create_dir_all(&dir).unwrap();
        self.clients.issue(&dir, name, |params: &mut CertificateParams| {
            let mut distinguished = DistinguishedName::new();
            distinguished.push(DnType::CommonName, name);
            params.distinguished_name = distinguished;
        })
    }

    /// Waits for an event of a log-in.
    #[track_caller]
    pub(crate) fn logged(&self, part: &str) -> String {
        self.server.stderr.wait_for(part, secs(10))
    }
}
