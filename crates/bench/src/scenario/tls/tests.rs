use super::*;
use crate::limit::Against;

fn limits(id: &str, libraries: &[(&'static str, &str)]) -> Vec<(Vec<String>, f64, Option<f64>)> {
    let libraries = libraries.iter().map(|(name, library)| (*name, (*library).to_owned())).collect();
    let work = Work::ALL.iter().find(|work| work.id == id).unwrap();
    let bar = work.bar.unwrap();
    let limits = bar.limits(&Libraries(libraries)).into_iter();
    limits
        .map(|limit| {
            assert_ne!(limit.against, Against::Limit);
            (limit.rivals().to_vec(), limit.value, limit.goal)
        })
        .collect()
}

#[test]
fn a_rival_with_our_library_has_a_limit_of_its_own() {
    let (ours, other) = ("AWS-LC 5.12.0", "OpenSSL 3.0.19");
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (id, same, limit, goal) in [
        ("full-p256-tls13", 0.80, 0.48, 0.43),
        ("full-rsa-tls13", 0.92, 0.75, 0.70),
        ("resumed-p256-tls13", 0.75, 0.50, 0.46),
    ] {
        let mixed = limits(id, &[("haproxy", ours), ("nginx", other)]);
        let others = (names(&["nginx", "hitch", "pen"]), limit, Some(goal));
        assert_eq!(mixed, [(names(&["haproxy"]), same, None), others], "{id}");
        let usual = limits(id, &[("haproxy", other), ("nginx", other)]);
        assert_eq!(usual, [(names(ALL_RIVALS), limit, Some(goal))], "{id}");
    }
    // haproxy is the only rival of a stream.
    assert_eq!(limits("download", &[("haproxy", ours)]), [(names(&["haproxy"]), 0.65, None)]);
    assert_eq!(limits("download", &[("haproxy", other)]), [(names(&["haproxy"]), 1.05, Some(0.95))]);
    // Requests on kept connections do not depend on the library.
    let requests = [(names(&["haproxy", "nginx"]), 0.80, Some(0.75))];
    assert_eq!(limits("requests", &[("haproxy", ours), ("nginx", other)]), requests);
    assert_eq!(limits("requests", &[]), requests);
}
