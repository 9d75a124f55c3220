package broker

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"testing"

	"dledger/internal/golden"
	"dledger/internal/mq"
)

// Every request of the original's clients, tools and brokers, in both serializations, as the release writes it, is understood: it is carried out, or
// refused because there is no such message, never for what it looks like. TestGoldenRequestsAreWhatTheOriginalWrites, of module interop/mq, has the release write them again.
func TestRequestsOfTheOriginalAreUnderstood(t *testing.T) {
	text, err := golden.Read("rocketmq-requests.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Frames []struct {
			Name, Serialize, FrameHex string
			Code, Opaque              int32
			Version                   int32
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	refused := map[int32]string{ // positions in these are made up
		mq.CodeSendBack: "look message by offset failed, 100: no such message", mq.CodeViewMessage: "can not find message by the offset, 100: no such message",
		mq.CodeConsumeDirectly: "can not find message by the offset, 100: no such message", mq.CodeEndTransaction: "find prepared transaction message failed",
		mq.CodeResumeCheckHalf: "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed: no such message",
	}
	for _, serialize := range []string{"JSON", "ROCKETMQ"} {
		t.Run(serialize, func(t *testing.T) {
			inCluster(t, 1, func(cfg *Config) { cfg.Name, cfg.Recall = "broker-a", true }, func(c *cluster) {
				t := c.T
				n := c.leader()
				consumer := c.client("10.1.0.2") // answers what it is asked
				conn, err := c.net.dial("10.1.0.1:50000", c.address(n))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				seen := map[int32]bool{}
				for _, g := range file.Frames {
					if g.Serialize != serialize {
						continue
					}
					seen[g.Code] = true
					frame, err := hex.DecodeString(g.FrameHex)
					if err != nil {
						t.Fatal(err)
					}
					if g.Version != mq.Version {
						t.Errorf("%s: version %d, want %d", g.Name, g.Version, mq.Version)
					}
					code, remark := exchange(t, conn, frame, g.Opaque)
					if why := refused[g.Code]; (code != mq.Success) != (why != "") || why != "" && remark != why {
						t.Errorf("%s: code %d, %q, want %q", g.Name, code, remark, why)
					}
					if g.Code == mq.CodeCreateGroup {
						consumer.must(n, mq.CodeHeartbeat, nil, heart("127.0.0.1@consumer", "GroupTest", "TopicTest"))
					}
				}
				for _, code := range needed {
					if !seen[code] {
						t.Errorf("there is no frame of request %d", code)
					}
				}
			})
		})
	}
}

// exchange sends a frame as it is and gives what its answer says; what the broker asks meanwhile gets none.
func exchange(t testing.TB, conn net.Conn, frame []byte, opaque int32) (code int32, remark string) {
	t.Helper()
	if _, err := conn.Write(frame); err != nil {
		t.Fatal(err)
	}
	for {
		var lengths [8]byte
		if _, err := io.ReadFull(conn, lengths[:]); err != nil {
			t.Fatal(err)
		}
		rest := make([]byte, binary.BigEndian.Uint32(lengths[:])-4)
		if _, err := io.ReadFull(conn, rest); err != nil {
			t.Fatal(err)
		}
		kind := binary.BigEndian.Uint32(lengths[4:])
		h := rest[:kind&0xFFFFFF]
		var answer struct {
			Code, Opaque, Flag int32
			Remark             string
		}
		if kind>>24 == 0 {
			if err := json.Unmarshal(h, &answer); err != nil {
				t.Fatal(err)
			}
		} else { // 2 code, 1 language, 2 version, 4 opaque, 4 flag, 4 length of the remark, remark
			answer.Code, answer.Opaque, answer.Flag = int32(binary.BigEndian.Uint16(h)), int32(binary.BigEndian.Uint32(h[5:])), int32(binary.BigEndian.Uint32(h[9:]))
			answer.Remark = string(h[17 : 17+binary.BigEndian.Uint32(h[13:])])
		}
		if answer.Opaque == opaque && answer.Flag&1 != 0 {
			return answer.Code, answer.Remark
		}
	}
}
