//! Similar names, for "did you mean ...?".

/// Returns the most similar of `names`, if similar enough: one edit per three characters, at most three. An edit
/// inserts, removes or replaces a character, or swaps two neighbours.
pub fn nearest<'n>(written: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    similar(written, names).into_iter().next()
}

/// Returns all names that are similar enough, the most similar first.
pub fn similar<'n>(written: &str, names: impl IntoIterator<Item = &'n str>) -> Vec<&'n str> {
    let mut similar: Vec<_> =
        names.into_iter().filter_map(|name| Some((distance(written, name)?, name))).collect();
    similar.sort_by_key(|(distance, _)| *distance);
    similar.into_iter().map(|(_, name)| name).collect()
}

/// Number of edits from `written` to `name`; `None` if too many for a typing error.
#[must_use]
pub fn distance(written: &str, name: &str) -> Option<usize> {
    let length = written.chars().count();
    let most = (length / 3).clamp(1, 3);
    // The time grows with the product of both lengths, and no name exceeds the limit.
    if length > LONGEST || name.chars().count().abs_diff(length) > most {
        return None;
    }
    let distance = strsim::osa_distance(&written.to_ascii_lowercase(), &name.to_ascii_lowercase());
    (distance <= most).then_some(distance)
}

/// Returns [`similar`] names, or else names that contain `written` or are part of it (at least three characters).
pub fn related<'n>(written: &str, names: impl IntoIterator<Item = &'n str> + Clone) -> Vec<&'n str> {
    let similar = similar(written, names.clone());
    if !similar.is_empty() || written.len() < 3 {
        return similar;
    }
    names
        .into_iter()
        .filter(|name| name.len() >= 3 && (name.contains(written) || written.contains(name)))
        .collect()
}

const LONGEST: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised_and_another_word_is_not() {
        let names = ["bind", "backends", "balance", "protocol"];
        for (written, meant) in
            [("bnid", "bind"), ("Bind", "bind"), ("backend", "backends"), ("protocl", "protocol")]
        {
            assert_eq!(nearest(written, names), Some(meant), "{written}");
        }
        for written in ["", "x", "listen", "wibble", &"b".repeat(1000)] {
            assert_eq!(nearest(written, names), None, "{written}");
        }
        assert_eq!(nearest("größse", ["größe"]), Some("größe"));
    }

    #[test]
    fn similar_names_stand_by_distance_and_related_ones_only_if_none_is_similar() {
        let names = ["tcp-kept", "tcp-new", "http-kept"];
        assert_eq!(similar("tcp-nwe", names), ["tcp-new"]);
        assert_eq!(related("kept", names), ["tcp-kept", "http-kept"]);
        assert_eq!(related("tcp-kepd", names), ["tcp-kept"]);
        assert!(related("ke", names).is_empty());
    }
}
