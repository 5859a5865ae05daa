//! Kerberos by the GSSAPI library of the system (RFC 2744, MIT Kerberos 1.19 or newer), loaded when it is wanted: nothing is
//! linked, and a machine without it lacks this mechanism only.
//!
//! Calls read files and may wait for them, so they belong on threads of their own.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use nix::libc;

/// Name of the library. Other implementations have other names, and other layouts.
const LIBRARY: &CStr = c"libgssapi_krb5.so.2";

type Status = u32;
/// gss_name_t, gss_cred_id_t, gss_ctx_id_t: only the library knows what is behind them.
type Opaque = *mut c_void;

/// gss_buffer_desc
#[repr(C)]
struct Buffer {
    length: usize,
    value: *mut c_void,
}

/// gss_OID_desc
#[repr(C)]
struct Oid {
    length: u32,
    elements: *mut c_void,
}

/// gss_OID_set_desc
#[repr(C)]
struct OidSet {
    count: usize,
    elements: *mut Oid,
}

/// gss_channel_bindings_struct
#[repr(C)]
struct Bindings {
    initiator_type: u32,
    initiator: Buffer,
    acceptor_type: u32,
    acceptor: Buffer,
    application_data: Buffer,
}

/// gss_key_value_element_desc
#[repr(C)]
struct KeyValue {
    key: *const c_char,
    value: *const c_char,
}

/// gss_key_value_set_desc
#[repr(C)]
struct KeyValues {
    count: u32,
    elements: *mut KeyValue,
}

type ImportName = unsafe extern "C" fn(*mut Status, *mut Buffer, *mut Oid, *mut Opaque) -> Status;
type ReleaseName = unsafe extern "C" fn(*mut Status, *mut Opaque) -> Status;
type DisplayName = unsafe extern "C" fn(*mut Status, Opaque, *mut Buffer, *mut *mut Oid) -> Status;
type AcquireCredFrom = unsafe extern "C" fn(
    *mut Status,
    Opaque,
    u32,
    *mut OidSet,
    c_int,
    *const KeyValues,
    *mut Opaque,
    *mut *mut OidSet,
    *mut u32,
) -> Status;
type ReleaseCred = unsafe extern "C" fn(*mut Status, *mut Opaque) -> Status;
type AcceptSecContext = unsafe extern "C" fn(
    *mut Status,
    *mut Opaque,
    Opaque,
    *mut Buffer,
    *mut Bindings,
    *mut Opaque,
    *mut *mut Oid,
    *mut Buffer,
    *mut u32,
    *mut u32,
    *mut Opaque,
) -> Status;
type InitSecContext = unsafe extern "C" fn(
    *mut Status,
    Opaque,
    *mut Opaque,
    Opaque,
    *mut Oid,
    u32,
    u32,
    *mut Bindings,
    *mut Buffer,
    *mut *mut Oid,
    *mut Buffer,
    *mut u32,
    *mut u32,
) -> Status;
type DeleteSecContext = unsafe extern "C" fn(*mut Status, *mut Opaque, *mut Buffer) -> Status;
type DisplayStatus =
    unsafe extern "C" fn(*mut Status, Status, c_int, *mut Oid, *mut u32, *mut Buffer) -> Status;
type ReleaseBuffer = unsafe extern "C" fn(*mut Status, *mut Buffer) -> Status;
/// krb5_init_context, krb5_kt_default_name, krb5_free_context: of the library of Kerberos below that of GSSAPI.
type InitContext = unsafe extern "C" fn(*mut Opaque) -> i32;
type KeytabName = unsafe extern "C" fn(Opaque, *mut c_char, c_int) -> i32;
type FreeContext = unsafe extern "C" fn(Opaque);

/// The functions of the library. It stays loaded until the process ends.
#[derive(Clone, Copy)]
pub struct Library {
    import_name: ImportName,
    release_name: ReleaseName,
    display_name: DisplayName,
    acquire_cred_from: AcquireCredFrom,
    release_cred: ReleaseCred,
    accept_sec_context: AcceptSecContext,
    init_sec_context: InitSecContext,
    delete_sec_context: DeleteSecContext,
    display_status: DisplayStatus,
    release_buffer: ReleaseBuffer,
    /// `None`: another library of Kerberos.
    krb5: Option<(InitContext, KeytabName, FreeContext)>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

/// Why a call failed, in the words of the library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing}: {why}")]
pub struct GssError {
    doing: &'static str,
    why: String,
}

/// A context that the acceptor has completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The whole principal of the initiator.
    pub principal: String,
    /// Flags of the context, also those that the library's header does not name.
    pub flags: u32,
    /// What the initiator gets.
    pub token: Vec<u8>,
}

/// Where an acceptor has its keys.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    /// `None`: the keytab of the system.
    pub keytab: Option<&'a Path>,
    /// File of the tokens that were seen; `None`: the usual one of the library.
    pub replays: Option<&'a Path>,
    /// `SERVICE@HOST`
    pub service: &'a str,
}

const COMPLETE: Status = 0;
const CONTINUE_NEEDED: Status = 1;
/// Bits of errors of calls and routines; the others add information.
const ERRORS: Status = 0xffff_0000;
const INDEFINITE: u32 = u32::MAX;
const ACCEPT: c_int = 2;
const OF_GSS: c_int = 1;
const OF_MECHANISM: c_int = 2;

/// 1.2.840.113554.1.2.2
const KRB5: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];
/// 1.2.840.113554.1.2.1.4, `SERVICE@HOST`
const HOST_BASED: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x01, 0x04];

impl Library {
    /// Loads the library. The error says why Kerberos cannot be used.
    pub fn load() -> Result<Self, String> {
        // SAFETY: the name is a C string; the constructors of this library of the system are trusted as those of libc are.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            let name = LIBRARY.to_string_lossy();
            return Err(format!("{name} cannot be loaded ({}): install libgssapi-krb5-2", last_error()));
        }
        let find = |name: &CStr| {
            // SAFETY: the handle is that of a loaded library, which is never unloaded, and the name is a C string.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if found.is_null() {
                Err(format!(
                    "{} is missing in {}: install MIT Kerberos 1.19 or newer",
                    name.to_string_lossy(),
                    LIBRARY.to_string_lossy()
                ))
            } else {
                Ok(found)
            }
        };
        macro_rules! function {
            ($name:literal, $kind:ty) => {
                // SAFETY: the address is that of the function of this name, whose type is that of RFC 2744, gssapi_ext.h and krb5.h.
                unsafe { std::mem::transmute::<*mut c_void, $kind>(find($name)?) }
            };
        }
        let krb5 = || -> Result<_, String> {
            let init = function!(c"krb5_init_context", InitContext);
            let name = function!(c"krb5_kt_default_name", KeytabName);
            Ok((init, name, function!(c"krb5_free_context", FreeContext)))
        };
        Ok(Self {
            krb5: krb5().ok(),
            import_name: function!(c"gss_import_name", ImportName),
            release_name: function!(c"gss_release_name", ReleaseName),
            display_name: function!(c"gss_display_name", DisplayName),
            acquire_cred_from: function!(c"gss_acquire_cred_from", AcquireCredFrom),
            release_cred: function!(c"gss_release_cred", ReleaseCred),
            accept_sec_context: function!(c"gss_accept_sec_context", AcceptSecContext),
            init_sec_context: function!(c"gss_init_sec_context", InitSecContext),
            delete_sec_context: function!(c"gss_delete_sec_context", DeleteSecContext),
            display_status: function!(c"gss_display_status", DisplayStatus),
            release_buffer: function!(c"gss_release_buffer", ReleaseBuffer),
        })
    }

    /// The keytab that is used where none is named, in the words of the library (`FILE:/etc/krb5.keytab`): by KRB5_KTNAME, by
    /// krb5.conf, or by its build. `None` if it does not say. Reads files.
    pub fn default_keytab(&self) -> Option<String> {
        let (init, name, free) = self.krb5?;
        let (mut context, mut text): (Opaque, _) = (null_mut(), [0u8; 4096]);
        // SAFETY: the pointer is to a value that lives until the call has returned. The context is freed below.
        if unsafe { init(&mut context) } != 0 {
            return None;
        }
        let size = c_int::try_from(text.len()).unwrap_or(0);
        // SAFETY: the context was made above; the library writes at most `size` bytes into the buffer, a zero byte among them.
        let status = unsafe { name(context, text.as_mut_ptr().cast(), size) };
        // SAFETY: the context was made above, and is not used after this.
        unsafe { free(context) };
        let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| status == 0)?;
        text.to_str().ok().map(str::to_owned)
    }

    /// Accepts the first token of an initiator, with channel bindings. A context that needs more tokens is refused: Kerberos
    /// needs one.
    pub fn accept(
        &self,
        keys: Keys<'_>,
        token: &[u8],
        application_data: &[u8],
    ) -> Result<Accepted, GssError> {
        let credential = self.keys(keys)?;
        let mut context = Context { library: *self, raw: null_mut() };
        let (mut token, mut bindings) = (borrowed(token), bindings(application_data));
        let (mut source, mut out) =
            (Name { library: *self, raw: null_mut() }, OwnedBuffer { library: *self, raw: empty() });
        let (mut minor, mut flags) = (0, 0);
        // SAFETY: all pointers are to values that live until the call has returned, of the types of RFC 2744; the buffers are
        // only read. What the library allocates is released by the owners above.
        let status = unsafe {
            (self.accept_sec_context)(
                &mut minor,
                &mut context.raw,
                credential.raw,
                &mut token,
                &mut bindings,
                &mut source.raw,
                null_mut(),
                &mut out.raw,
                &mut flags,
                null_mut(),
                null_mut(),
            )
        };
        self.check("accept the token", status, minor)?;
        // Beside errors the status says that a token was seen before or is too old, which no context may begin with (RFC 2743
        // section 2.2.2).
        let why = match status {
            COMPLETE => None,
            CONTINUE_NEEDED => Some("the client must send another token, and Kerberos has one".to_owned()),
            other => Some(format!("the token was seen before, or is too old (GSS status {other:#x})")),
        };
        if let Some(why) = why {
            return Err(GssError { doing: "accept the token", why });
        }
        Ok(Accepted { principal: source.text()?, flags, token: out.bytes().to_vec() })
    }

    /// Begins a context with the tickets of this user.
    pub fn initiate(
        &self,
        service: &str,
        flags: u32,
        application_data: &[u8],
    ) -> Result<Initiator, GssError> {
        let target = self.import(service)?;
        let context = Context { library: *self, raw: null_mut() };
        let data = application_data.to_vec();
        Ok(Initiator { library: *self, target, context, flags, data })
    }

    fn keys(&self, keys: Keys<'_>) -> Result<Credential, GssError> {
        const DOING: &str = "read the keys of the service";
        let name = self.import(keys.service)?;
        let text = |prefix: &str, path: &Path| {
            CString::new(format!("{prefix}{}", path.display()))
                .map_err(|_| GssError { doing: DOING, why: "a path has a zero byte".to_owned() })
        };
        let keytab = keys.keytab.map(|path| text("FILE:", path)).transpose()?;
        let replays = keys.replays.map(|path| text("file2:", path)).transpose()?;
        let keytab = keytab.iter().map(|value| KeyValue { key: c"keytab".as_ptr(), value: value.as_ptr() });
        let replays = replays.iter().map(|value| KeyValue { key: c"rcache".as_ptr(), value: value.as_ptr() });
        let mut elements: Vec<_> = keytab.chain(replays).collect();
        let count = u32::try_from(elements.len()).unwrap_or(0);
        let store = KeyValues { count, elements: elements.as_mut_ptr() };
        let mut mechanism = oid(KRB5);
        let mut mechanisms = OidSet { count: 1, elements: &mut mechanism };
        let mut credential = Credential { library: *self, raw: null_mut() };
        let mut minor = 0;
        // SAFETY: all pointers are to values that live until the call has returned, of the types of gssapi_ext.h, and are only
        // read, but for `minor` and the credential, which its owner releases.
        let status = unsafe {
            (self.acquire_cred_from)(
                &mut minor,
                name.raw,
                INDEFINITE,
                &mut mechanisms,
                ACCEPT,
                if count == 0 { null() } else { &store },
                &mut credential.raw,
                null_mut(),
                null_mut(),
            )
        };
        self.check(DOING, status, minor)?;
        Ok(credential)
    }

    fn import(&self, service: &str) -> Result<Name, GssError> {
        let mut text = borrowed(service.as_bytes());
        let mut kind = oid(HOST_BASED);
        let mut name = Name { library: *self, raw: null_mut() };
        let mut minor = 0;
        // SAFETY: all pointers are to values that live until the call has returned; buffer and OID are only read. The owner
        // releases the name.
        let status = unsafe { (self.import_name)(&mut minor, &mut text, &mut kind, &mut name.raw) };
        self.check("read the name of the service", status, minor)?;
        Ok(name)
    }

    fn check(&self, doing: &'static str, status: Status, minor: Status) -> Result<(), GssError> {
        if status & ERRORS == 0 {
            return Ok(());
        }
        let texts = [self.words(status, OF_GSS), self.words(minor, OF_MECHANISM)];
        let why: Vec<_> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        Err(GssError { doing, why: why.join(": ") })
    }

    fn words(&self, status: Status, kind: c_int) -> String {
        if kind == OF_MECHANISM && status == COMPLETE {
            return String::new();
        }
        let mut out = OwnedBuffer { library: *self, raw: empty() };
        let mut mechanism = oid(KRB5);
        let (mut minor, mut more) = (0, 0);
        // SAFETY: all pointers are to values that live until the call has returned; the OID is only read, and the owner releases
        // the text.
        let shown = unsafe {
            (self.display_status)(&mut minor, status, kind, &mut mechanism, &mut more, &mut out.raw)
        };
        if shown & ERRORS != 0 {
            return format!("status {status:#x}");
        }
        String::from_utf8_lossy(out.bytes()).into_owned()
    }
}

/// A context that an initiator makes.
#[derive(Debug)]
pub struct Initiator {
    library: Library,
    target: Name,
    context: Context,
    flags: u32,
    data: Vec<u8>,
}

/// A step of an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initiated {
    /// What the acceptor gets; empty if nothing.
    pub token: Vec<u8>,
    pub progress: Progress,
    /// Flags of the context so far.
    pub flags: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The acceptor has proved who it is.
    Complete,
    NeedsMore,
}

impl Initiator {
    /// Takes the token of the acceptor; at first there is none.
    pub fn step(&mut self, token: Option<&[u8]>) -> Result<Initiated, GssError> {
        let library = self.library;
        let mut input = borrowed(token.unwrap_or_default());
        let mut bindings = bindings(&self.data);
        let mut mechanism = oid(KRB5);
        let mut out = OwnedBuffer { library, raw: empty() };
        let (mut minor, mut flags) = (0, 0);
        // SAFETY: all pointers are to values that live until the call has returned, of the types of RFC 2744; buffers and OID
        // are only read. Context and output are released by their owners.
        let status = unsafe {
            (library.init_sec_context)(
                &mut minor,
                null_mut(),
                &mut self.context.raw,
                self.target.raw,
                &mut mechanism,
                self.flags,
                0,
                &mut bindings,
                if token.is_some() { &mut input } else { null_mut() },
                null_mut(),
                &mut out.raw,
                &mut flags,
                null_mut(),
            )
        };
        library.check("make a token for the service", status, minor)?;
        let progress = match status {
            COMPLETE => Progress::Complete,
            CONTINUE_NEEDED => Progress::NeedsMore,
            other => {
                let why = format!(
                    "the answer of the service was seen before, or is too old (GSS status {other:#x})"
                );
                return Err(GssError { doing: "make a token for the service", why });
            }
        };
        Ok(Initiated { token: out.bytes().to_vec(), progress, flags })
    }
}

#[derive(Debug)]
struct Name {
    library: Library,
    raw: Opaque,
}

impl Name {
    fn text(&self) -> Result<String, GssError> {
        const DOING: &str = "read the name of the initiator";
        let mut out = OwnedBuffer { library: self.library, raw: empty() };
        let mut minor = 0;
        // SAFETY: the name is one that the library has made and that was not released; the owner releases the text.
        let status = unsafe { (self.library.display_name)(&mut minor, self.raw, &mut out.raw, null_mut()) };
        self.library.check(DOING, status, minor)?;
        String::from_utf8(out.bytes().to_vec())
            .map_err(|_| GssError { doing: DOING, why: "it is not UTF-8".to_owned() })
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the library has made the name, and only this owner releases it, once.
            let _ = unsafe { (self.library.release_name)(&mut 0, &mut self.raw) };
        }
    }
}

struct Credential {
    library: Library,
    raw: Opaque,
}

impl Drop for Credential {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the library has made the credential, and only this owner releases it, once.
            let _ = unsafe { (self.library.release_cred)(&mut 0, &mut self.raw) };
        }
    }
}

#[derive(Debug)]
struct Context {
    library: Library,
    raw: Opaque,
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the library has made the context, and only this owner deletes it, once; no token about that is wanted.
            let _ = unsafe { (self.library.delete_sec_context)(&mut 0, &mut self.raw, null_mut()) };
        }
    }
}

/// A buffer that the library fills.
struct OwnedBuffer {
    library: Library,
    raw: Buffer,
}

impl OwnedBuffer {
    fn bytes(&self) -> &[u8] {
        if self.raw.value.is_null() {
            return &[];
        }
        // SAFETY: the library has filled the buffer with so many bytes, which live until this owner releases them.
        unsafe { std::slice::from_raw_parts(self.raw.value.cast(), self.raw.length) }
    }
}

impl Drop for OwnedBuffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is empty, or the library has filled it, and only this owner releases it, once.
        let _ = unsafe { (self.library.release_buffer)(&mut 0, &mut self.raw) };
    }
}

fn empty() -> Buffer {
    Buffer { length: 0, value: null_mut() }
}

/// A buffer that the library only reads, while `bytes` lives.
fn borrowed(bytes: &[u8]) -> Buffer {
    Buffer { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

/// Channel bindings for GSSAPI: application data alone, the address fields are empty (RFC 5801 section 5.1).
fn bindings(application_data: &[u8]) -> Bindings {
    Bindings {
        initiator_type: 0,
        initiator: empty(),
        acceptor_type: 0,
        acceptor: empty(),
        application_data: borrowed(application_data),
    }
}

fn oid(elements: &'static [u8]) -> Oid {
    let length = u32::try_from(elements.len()).unwrap_or(0);
    Oid { length, elements: elements.as_ptr().cast_mut().cast() }
}

fn last_error() -> String {
    // SAFETY: dlerror(3) takes nothing; its text lives until the next call of this thread, and is copied before.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason is given".to_owned();
    }
    // SAFETY: it is not null, so it is a C string of the loader.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
