#!/usr/bin/env bash
# Builds the guide and the reference pages as a book: target/book/docs/guide/index.html. Needs mdbook on the PATH.
#
# Pages link to other files of the repository. These are copied beside the book, to the same places below target/book; of a
# Markdown file there is also a page of its text, since mdbook makes links to such a file end in .html.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
cd "$(dirname "$0")/.."

if ! command -v mdbook >/dev/null; then
    echo "book: mdbook is missing: cargo install --locked mdbook" >&2
    exit 1
fi
rm -rf target/book
mdbook build docs
# mdbook repeats the first page here, with links that are relative to the guide.
echo '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=guide/index.html">' \
    >target/book/docs/index.html

for page in docs/*.md docs/guide/*.md; do
    # Links, without what follows `#`.
    { grep -oE '\]\([^)#]+' "$page" || true; } | cut -c 3- | while read -r link; do
        case $link in *://*) continue ;; esac
        path=$(realpath --relative-to=. "$(dirname "$page")/$link")
        case $path in docs/*) continue ;; esac
        cp -r --parents "$path" target/book/
        case $path in *.md)
            {
                echo '<!doctype html><meta charset="utf-8"><pre>'
                # Links lead to headings, too.
                sed 's/&/\&amp;/g; s/</\&lt;/g' "$path" | awk '
                    /^#+ / {
                        id = tolower($0); sub(/^#+ /, "", id); gsub(/[^a-z0-9 _-]/, "", id); gsub(/ /, "-", id)
                        $0 = "<b id=\"" id "\">" $0 "</b>"
                    }
                    { print }'
                echo '</pre>'
            } >"target/book/${path%.md}.html"
            ;;
        esac
    done
done
