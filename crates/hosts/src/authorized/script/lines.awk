# The new lines: of deploy with the keys of $P_LINES and no other ones that are marked with one of $P_TAGS; of revoke without the keys
# of $P_BLOBS and without lines that are marked. Prints how many were added, removed, and are there.
BEGIN {
    file = ENVIRON["P_TEMP"]; work = ENVIRON["P_WORK"]
    printf "" > file
    count = split(ENVIRON["P_TAGS"], tags, "\n")
    for (i = 1; i <= count; i++) if (tags[i] != "") ours[tags[i]] = 1
    count = split(ENVIRON["P_BLOBS"], blobs, "\n")
    for (i = 1; i <= count; i++) if (blobs[i] != "") wanted[blobs[i]] = 1
    count = split(ENVIRON["P_LINES"], lines, "\n")
    for (i = 1; i <= count; i++) if (split(lines[i], word, " ") > 1) line_of[word[2]] = lines[i]
    added = 0; removed = 0; total = 0
}
function put(line) { print line > file; total++ }
{
    text = $0
    sub(/\r$/, "", text)
    if (text ~ /^[ \t]*(#|$)/) { put($0); next }
    gsub(/\\"/, "", text)
    gsub(/"[^"]*"/, "q", text)
    words = split(text, word, /[ \t]+/)
    at = 0
    for (i = 1; i < words; i++) if (word[i] ~ /^(ssh-|ecdsa-sha2-|sk-ssh-|sk-ecdsa-)/) { at = i + 1; break }
    if (at == 0) { put($0); next }
    blob = word[at]; is_marked = (word[at + 1] in ours)
    if (work == "revoke") {
        if ((blob in wanted) || is_marked) { removed++; next }
        put($0)
    } else if (is_marked) {
        if ((blob in line_of) && !(blob in seen)) {
            seen[blob] = 1
            if ($0 != line_of[blob]) { added++; removed++ }
            put(line_of[blob])
        } else removed++
    } else {
        if (blob in line_of) seen[blob] = 1
        put($0)
    }
}
END {
    if (work == "deploy") for (i = 1; i <= count; i++) {
        if (split(lines[i], word, " ") > 1 && !(word[2] in seen)) { put(lines[i]); added++; seen[word[2]] = 1 }
    }
    close(file)
    print added, removed, total
}
