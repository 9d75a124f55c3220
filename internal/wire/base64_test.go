package wire

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestBase64IsThatOfTheStandardLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "body")
		padded := base64.StdEncoding.EncodeToString(body)
		if got := string(appendBase64([]byte("x"), body)); got != "x"+padded {
			t.Fatalf("got %s, want x%s", got, padded)
		}
		for _, text := range []string{padded, strings.TrimRight(padded, "=")} {
			buf := []byte(text)
			n, err := decodeBase64(buf, buf) // in place
			if err != nil || !bytes.Equal(buf[:n], body) {
				t.Fatalf("%s: got %x, %v, want %x", text, buf[:n], err, body)
			}
		}
		broken := []byte(padded)
		if len(broken) > 0 {
			broken[rapid.IntRange(0, len(broken)-1).Draw(t, "at")] = rapid.SampledFrom([]byte("-_ \x00\xff\"{")).Draw(t, "char")
			if _, err := decodeBase64(broken, broken); err == nil {
				t.Fatalf("%q passed", broken)
			}
		}
	})
}

func TestBase64MayHaveLineEnds(t *testing.T) {
	body := bytes.Repeat([]byte("line "), 40)
	text := base64.StdEncoding.EncodeToString(body)
	text = text[:76] + "\r\n" + text[76:152] + "\r\n" + text[152:]
	buf := []byte(text)
	n, err := decodeBase64(buf, buf)
	if err != nil || !bytes.Equal(buf[:n], body) {
		t.Fatalf("got %q, %v", buf[:n], err)
	}
}
