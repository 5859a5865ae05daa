//! A certificate authority with an OCSP responder. openssl makes the certificates and answers; this module signs the
//! answers that openssl cannot make (expired, short-lived).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use der::asn1::{Any, BitString, GeneralizedTime, Null, OctetString};
use der::{Decode, Encode};
use logic::ocsp::message::{
    BASIC, BasicResponse, CertStatus, OcspRequest, OcspResponse, ResponderId, ResponseBytes, ResponseData,
    ResponseStatus, SingleResponse,
};
use rcgen::SigningKey;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tempfile::TempDir;

use crate::peers::{BackendConnection, Process, Scripted};
use crate::tools::openssl;
use crate::{secs, tools};

const EC: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
const RSA: [&str; 2] = ["-newkey", "rsa:2048"];

/// Status of all certificates in the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OcspAnswer {
    Good,
    Revoked,
    Unknown,
}

pub struct Authority {
    dir: TempDir,
    opinion: OcspAnswer,
    /// Serial numbers of the issued certificates, for openssl's own responder.
    index: Mutex<Vec<String>>,
    runs: AtomicUsize,
}

impl Authority {
    /// Creates an authority with an ECDSA key.
    pub fn new() -> Self {
        Self::with(&EC, "/CN=authority")
    }

    pub fn rsa() -> Self {
        Self::with(&RSA, "/CN=authority")
    }

    fn with(kind: &[&str], subject: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (index, runs) = (Mutex::default(), AtomicUsize::new(0));
        let authority = Self { dir, opinion: OcspAnswer::Good, index, runs };
        let (key, crt) = (authority.text("ca.key"), authority.text("ca.crt"));
        let mut arguments = vec!["req", "-x509", "-nodes", "-days", "30", "-subj", subject];
        arguments.extend(kind);
        arguments.extend(["-keyout", &key, "-out", &crt]);
        openssl(&arguments);
        fs::write(authority.path("index"), "").unwrap();
        authority
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Issues a certificate with `extensions`, as `stem.crt` with its chain and `stem.key` in `directory`.
    pub fn issue(&self, directory: &Path, stem: &str, name: &str, extensions: &[&str]) {
        let run = self.runs.fetch_add(1, SeqCst);
        let (key, crt) = (self.text(&format!("{run}.key")), self.text(&format!("{run}.crt")));
        let (ca, ca_key) = (self.text("ca.crt"), self.text("ca.key"));
        let (subject, names) = (format!("/CN={name}"), format!("subjectAltName=DNS:{name}"));
        let mut arguments =
            vec!["req", "-x509", "-nodes", "-days", "9", "-subj", &subject, "-addext", &names];
        arguments.extend(EC);
        arguments.extend(["-addext", "basicConstraints=critical,CA:FALSE", "-CA", &ca, "-CAkey", &ca_key]);
        arguments.extend(extensions.iter().flat_map(|extension| ["-addext", extension]));
        arguments.extend(["-keyout", &key, "-out", &crt]);
        openssl(&arguments);
        let serial = openssl(&["x509", "-in", &crt, "-noout", "-serial"]);
        let serial = serial.trim().trim_start_matches("serial=").to_owned();
        self.index.lock().unwrap().push(serial);
        self.write_index();
        let chain = [fs::read(&crt).unwrap(), fs::read(&ca).unwrap()].concat();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        // Writes the key before the certificate, and each file by a rename, as careful programs do.
        for (bytes, ending) in [(fs::read(&key).unwrap(), "key"), (chain, "crt")] {
            let aside = self.path("aside");
            fs::write(&aside, bytes).unwrap();
            fs::set_permissions(&aside, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(aside, directory.join(format!("{stem}.{ending}"))).unwrap();
        }
    }

    /// A copy with the same key that answers `opinion` for every certificate.
    pub fn thinking(&self, opinion: OcspAnswer) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for file in ["ca.crt", "ca.key"] {
            fs::copy(self.path(file), dir.path().join(file)).unwrap();
        }
        Self { dir, opinion, index: Mutex::default(), runs: AtomicUsize::new(0) }
    }

    fn write_index(&self) {
        let line = |serial: &String| format!("V\t400101000000Z\t\t{serial}\tunknown\t/CN=x\n");
        let text: String = self.index.lock().unwrap().iter().map(line).collect();
        fs::write(self.path("index.new"), text).unwrap();
        fs::rename(self.path("index.new"), self.path("index")).unwrap();
    }

    /// The index file of openssl for one request.
    fn index_for(&self, request: &[u8], run: usize) -> String {
        let asked = OcspRequest::from_der(request).unwrap().tbs_request.request_list.remove(0).cert_id;
        let serial: String =
            asked.serial_number.as_bytes().iter().map(|byte| format!("{byte:02X}")).collect();
        let line = match self.opinion {
            OcspAnswer::Good => format!("V\t400101000000Z\t\t{serial}\tunknown\t/CN=x\n"),
            OcspAnswer::Revoked => {
                format!("R\t400101000000Z\t260101000000Z,keyCompromise\t{serial}\tunknown\t/CN=x\n")
            }
            OcspAnswer::Unknown => String::new(),
        };
        let path = self.path(&format!("{run}.index"));
        fs::write(&path, line).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// openssl's answer to a request, signed by the authority itself unless `more` arguments say otherwise.
    #[track_caller]
    pub fn answer(&self, request: &[u8], more: &[&str]) -> Vec<u8> {
        let run = self.runs.fetch_add(1, SeqCst);
        let (asked, answered) = (self.text(&format!("{run}.req")), self.text(&format!("{run}.resp")));
        fs::write(&asked, request).unwrap();
        let (index, ca, key) = (self.index_for(request, run), self.text("ca.crt"), self.text("ca.key"));
        let mut arguments =
            vec!["ocsp", "-index", &index, "-CA", &ca, "-reqin", &asked, "-respout", &answered];
        if !more.contains(&"-rsigner") {
            arguments.extend(["-rsigner", &ca, "-rkey", &key]);
        }
        arguments.extend(["-ndays", "3"]);
        arguments.extend(more);
        openssl(&arguments);
        fs::read(answered).unwrap()
    }

    /// An answer about the first certificate of a request, valid `from`..`until`, signed by the authority itself.
    pub fn answer_for(&self, request: &[u8], from: SystemTime, until: SystemTime) -> Vec<u8> {
        let asked = OcspRequest::from_der(request).unwrap().tbs_request.request_list.remove(0).cert_id;
        let time = |at: SystemTime| {
            let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            GeneralizedTime::from_unix_duration(Duration::from_secs(seconds)).unwrap()
        };
        let key = rcgen::KeyPair::from_pem(&fs::read_to_string(self.path("ca.key")).unwrap()).unwrap();
        let certificate = CertificateDer::from_pem_file(self.path("ca.crt")).unwrap();
        let certificate = x509_cert::Certificate::from_der(&certificate).unwrap();
        let data = ResponseData {
            version: None,
            responder: ResponderId::ByName(
                Any::encode_from(certificate.tbs_certificate().subject()).unwrap(),
            ),
            produced_at: time(from),
            responses: vec![SingleResponse {
                cert_id: asked,
                status: CertStatus::Good(Null),
                this_update: time(from),
                next_update: Some(time(until)),
                extensions: None,
            }],
            extensions: None,
        };
        let data = Any::encode_from(&data).unwrap();
        let signature = key.sign(&data.to_der().unwrap()).unwrap();
        let algorithm = certificate.signature_algorithm();
        let basic = BasicResponse {
            data,
            signature_algorithm: Any::encode_from(algorithm).unwrap(),
            signature: BitString::from_bytes(&signature).unwrap(),
            certificates: None,
        };
        let bytes =
            ResponseBytes { kind: BASIC, response: OctetString::new(basic.to_der().unwrap()).unwrap() };
        OcspResponse { status: ResponseStatus::Successful, bytes: Some(bytes) }.to_der().unwrap()
    }

    pub fn openssl_responder(&self) -> Process {
        let mut command = Command::new(tools::program("openssl"));
        let (index, ca, key) = (self.text("index"), self.text("ca.crt"), self.text("ca.key"));
        command.args(["ocsp", "-port", "0", "-index", &index, "-CA", &ca, "-rsigner", &ca, "-rkey", &key]);
        command.args(["-ndays", "3"]);
        let mut process = Process::start(&mut command);
        let line = process.stdout.wait_for("ACCEPT", secs(10));
        let port = line.split_whitespace().nth(1).and_then(|address| address.rsplit(':').next());
        process.address = format!("127.0.0.1:{}", port.unwrap());
        process
    }
}

/// Answer of a responder to a request.
pub type Script = Box<dyn Fn(&mut BackendConnection, &[u8]) + Send + Sync>;

/// A responder with scripted answers. It speaks HTTP, POST only.
pub struct Responder {
    pub scripted: Scripted,
    script: Arc<Mutex<Arc<Script>>>,
    pub asked: Arc<AtomicUsize>,
}

impl Responder {
    /// Starts a responder that runs `script` for every request.
    pub fn start(script: impl Fn(&mut BackendConnection, &[u8]) + Send + Sync + 'static) -> Self {
        let script: Arc<Mutex<Arc<Script>>> = Arc::new(Mutex::new(Arc::new(Box::new(script))));
        let asked = Arc::new(AtomicUsize::new(0));
        let (current, count) = (script.clone(), asked.clone());
        let scripted = Scripted::start(move |talk| {
            while let Some(request) = talk.request() {
                count.fetch_add(1, SeqCst);
                let script = current.lock().unwrap().clone();
                script(talk, &request.body);
            }
        });
        Self { scripted, script, asked }
    }

    /// Starts a responder with openssl's answers for this authority.
    pub fn of(authority: &Arc<Authority>) -> Self {
        let responder = Self::start(|_, _| {});
        responder.be_good(authority);
        responder
    }

    /// Replaces the script.
    pub fn set(&self, script: impl Fn(&mut BackendConnection, &[u8]) + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Arc::new(Box::new(script));
    }

    /// Replaces the script by openssl's answers for this authority.
    pub fn be_good(&self, authority: &Arc<Authority>) {
        let authority = authority.clone();
        self.set(move |talk, request| {
            // A GET request has no body.
            if !request.is_empty() {
                let _ = talk.answer(200, &[], &authority.answer(request, &[]));
            }
        });
    }

    pub fn extension(&self) -> String {
        format!("authorityInfoAccess=OCSP;URI:http://{}/ocsp", self.scripted.address)
    }
}
