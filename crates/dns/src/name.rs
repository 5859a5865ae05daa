//! Names and types of `access` in the form of the DNS library, and back.

use access::keys::{Kind, Owner, Set};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::BinEncodable;

/// The absolute name. [`Owner`] has the limits of names already.
pub(crate) fn name(owner: &Owner) -> Name {
    let mut name = Name::from_labels(owner.labels().map(str::as_bytes)).unwrap_or_default();
    name.set_fqdn(true);
    name
}

pub(crate) fn record_type(kind: Kind) -> RecordType {
    match kind {
        Kind::Cert => RecordType::CERT,
        Kind::Sshfp => RecordType::SSHFP,
        Kind::Tlsa => RecordType::TLSA,
        Kind::Openpgpkey => RecordType::OPENPGPKEY,
    }
}

/// The records of a name and type in an answer.
pub(crate) fn matching<'a>(
    records: &'a [Record],
    name: &'a Name,
    kind: RecordType,
) -> impl Iterator<Item = &'a Record> {
    records.iter().filter(move |record| record.name == *name && record.record_type() == kind)
}

/// Their data as on the wire.
pub(crate) fn data<'a>(records: impl IntoIterator<Item = &'a Record>) -> Set {
    records.into_iter().filter_map(|record| bytes(&record.data)).collect()
}

fn bytes(data: &RData) -> Option<Vec<u8>> {
    data.to_bytes().ok()
}
