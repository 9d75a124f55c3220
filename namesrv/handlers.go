package namesrv

import (
	"time"

	"dledger/internal/mq"
)

// GET_ROUTEINFO_BY_TOPIC (105). Field: topic!; acceptStandardJsonOnly is not looked at. Every client asks it. Answer: TopicRouteData,
// TopicNotExist when nobody has the topic.
// Differs from the original: integer keys always have quotes, which clients of every release read; a broker name without a leader has a
// stand-in (routes.standIn); where one node leads all brokers of a topic others take some of its ids (routes.spread); a server that has just started waits a moment for leaders (settle). Left out: filter servers, static topics.
func (s *Server) route(r *request) (reply, error) {
	topic := r.Str("topic")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	cfg := s.config.Load()
	if cfg.WaitForService > 0 && time.Since(s.started) < cfg.WaitForService {
		return reply{}, refuse(mq.SystemError, "name server not ready")
	}
	s.settle(topic)
	route, ok := s.routes.route(topic)
	if !ok {
		return reply{}, refuse(mq.TopicNotExist, "No topic route info in name server for the topic: %.255s", topic)
	}
	if cfg.OrderMessages {
		route.OrderTopicConf, _ = s.kv.get(orderNamespace, topic)
	}
	return reply{body: mq.Marshal(route)}, nil
}

// settleMax is a little more than brokers of ours take to come back to a name server that has started again.
const settleMax = 2 * time.Second

// settle holds the question for a route while this server has only just started and knows a part of it: the first to come back to the name server of a node are that node's own
// replicas, and a client that is told of them alone uses nothing else for half a minute.
func (s *Server) settle(topic string) {
	for {
		left := settleMax - time.Since(s.started)
		if left <= 0 {
			return
		}
		news, partial := s.routes.partial(topic)
		if !partial {
			return
		}
		select {
		case <-news:
		case <-time.After(left):
		case <-s.stop:
			return
		}
	}
}

// replica reads which replica a request of a broker speaks for.
func (r *request) replica() replica {
	return replica{cluster: r.Str("clusterName"), broker: r.Str("brokerName"), addr: r.Str("brokerAddr")}
}

// REGISTER_BROKER (103). Fields: brokerName!, brokerAddr!, clusterName!, haServerAddr!, brokerId!, heartbeatTimeoutMillis,
// enableActingMaster, compressed, bodyCrc32, __ZONE_NAME; __dledgerProcess, see mq.FieldProcess. Body: RegisterBody, plain or compressed; TopicConfigTable from brokers before
// 3.0.11. Answer: masterAddr and haServerAddr of the leader for those that are none; KVTable of the order configuration.
// Differs from the original: a broker name belongs to one cluster; names and addresses that would break clients are refused. Left out:
// mappings of static topics, filter servers, notice of a changed lowest id.
func (s *Server) registerBroker(r *request) (reply, error) {
	cfg := s.config.Load()
	reg := &registration{replica: r.replica(), id: r.Int64("brokerId"), haAddr: r.Str("haServerAddr"), zone: r.StrOr("__ZONE_NAME", ""), process: r.StrOr(mq.FieldProcess, ""),
		silence: time.Duration(min(r.Int64Or("heartbeatTimeoutMillis", 0), silenceMax.Milliseconds())) * time.Millisecond, deleteAbsent: cfg.DeleteAbsentTopics, conn: r.conn}
	if r.Has("enableActingMaster") {
		acting := r.BoolOr("enableActingMaster", false)
		reg.acting = &acting
	}
	compressed, crc := r.BoolOr("compressed", false), r.Int32Or("bodyCrc32", 0)
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	if err := checkReplica(reg.replica); err != nil {
		return reply{}, err
	}
	if len(reg.process) > nameLenMax {
		reg.process = ""
	}
	if reg.silence <= 0 {
		reg.silence = cfg.BrokerTimeout
	}
	if crc != 0 && crc != mq.BodyCRC(r.body) {
		return reply{}, refuse(mq.SystemError, "crc32 not match")
	}
	var err error
	if reg.body, err = mq.DecodeRegister(r.body, compressed, r.version); err != nil {
		return reply{}, err
	}
	at, err := s.routes.register(reg, time.Now())
	if err != nil {
		return reply{}, err
	}
	answer := reply{ext: map[string]string{}}
	if at.addr != "" {
		answer.ext["masterAddr"], answer.ext["haServerAddr"] = at.addr, at.haAddr
	}
	if table := s.kv.list(orderNamespace); !cfg.KeepOrderConfig && len(table) > 0 {
		answer.body = mq.Marshal(mq.KVTable{Table: table})
	}
	return answer, nil
}

// UNREGISTER_BROKER (104). Fields: brokerName!, brokerAddr!, clusterName!, brokerId!. A broker that stops. The original gathers these
// for a moment; here the answer says that it is done.
func (s *Server) unregisterBroker(r *request) (reply, error) {
	who := r.replica()
	r.Int64("brokerId")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	s.routes.unregister(who)
	return reply{}, nil
}

// QUERY_DATA_VERSION (322). Fields: brokerName!, brokerAddr!, clusterName!, brokerId!; body DataVersion. Answer: field changed, and the
// DataVersion known here, if any. A broker asks before it sends all its topics; the question counts as a sign of life.
func (s *Server) queryDataVersion(r *request) (reply, error) {
	who := r.replica()
	r.Int64("brokerId")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	var theirs mq.DataVersion
	if err := mq.Unmarshal(r.body, &theirs); err != nil {
		return reply{}, err
	}
	ours, known := s.routes.refresh(who, time.Now())
	if !known {
		return reply{ext: map[string]string{"changed": "true"}}, nil
	}
	changed := "false"
	if ours != theirs {
		changed = "true"
	}
	return reply{ext: map[string]string{"changed": changed}, body: mq.Marshal(ours)}, nil
}

// BROKER_HEARTBEAT (904). Fields: clusterName!, brokerAddr!, brokerName!; epoch, offsets and priority are for a controller, which this
// is not. A replica that is not registered gets the same answer, as in the original.
func (s *Server) brokerHeartbeat(r *request) (reply, error) {
	who := r.replica()
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	s.routes.refresh(who, time.Now())
	return reply{}, nil
}

// GET_BROKER_MEMBER_GROUP (901). Fields: clusterName!, brokerName!. Answer: BrokerMembers, empty for an unknown name.
func (s *Server) brokerMembers(r *request) (reply, error) {
	cluster, name := r.Str("clusterName"), r.Str("brokerName")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	return reply{body: mq.Marshal(s.routes.members(cluster, name))}, nil
}

// GET_BROKER_CLUSTER_INFO (106). Answer: ClusterInfo. Tools start with it.
func (s *Server) clusterInfo(*request) (reply, error) {
	return reply{body: mq.Marshal(s.routes.clusterInfo())}, nil
}

// GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206). Answer: TopicList.
func (s *Server) allTopics(*request) (reply, error) {
	if s.config.Load().HideAllTopics {
		return reply{}, refuse(mq.SystemError, "disable")
	}
	return reply{body: mq.Marshal(mq.TopicList{Topics: s.routes.topicList(nil)})}, nil
}

// topics answers with some of the topics, unless such lists are switched off.
func (s *Server) topics(list func() []string) (reply, error) {
	if s.config.Load().HideTopicLists {
		return reply{}, refuse(mq.SystemError, "disable")
	}
	return reply{body: mq.Marshal(mq.TopicList{Topics: list()})}, nil
}

// GET_TOPICS_BY_CLUSTER (224). Field: cluster!. Answer: TopicList.
func (s *Server) topicsByCluster(r *request) (reply, error) {
	cluster := r.Str("cluster")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	return s.topics(func() []string { return s.routes.topicsOfCluster(cluster) })
}

// GET_SYSTEM_TOPIC_LIST_FROM_NS (304). Answer: TopicList of the names of clusters and brokers, with the address of a broker that knows
// the other system topics.
func (s *Server) systemTopics(*request) (reply, error) {
	if s.config.Load().HideTopicLists {
		return reply{}, refuse(mq.SystemError, "disable")
	}
	return reply{body: mq.Marshal(s.routes.systemTopics())}, nil
}

// Bits of topicSysFlag.
const (
	flagUnit    = 1
	flagUnitSub = 2
)

func (s *Server) unit(keep func(flag int32) bool) (reply, error) {
	return s.topics(func() []string {
		return s.routes.topicList(func(queues map[string]mq.QueueData) bool {
			for _, q := range queues {
				if keep(q.TopicSysFlag) {
					return true
				}
			}
			return false
		})
	})
}

// GET_UNIT_TOPIC_LIST (311). Answer: TopicList.
func (s *Server) unitTopics(*request) (reply, error) {
	return s.unit(func(flag int32) bool { return flag&flagUnit != 0 })
}

// GET_HAS_UNIT_SUB_TOPIC_LIST (312). Answer: TopicList.
func (s *Server) unitSubTopics(*request) (reply, error) {
	return s.unit(func(flag int32) bool { return flag&flagUnitSub != 0 })
}

// GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313). Answer: TopicList.
func (s *Server) unitSubOnlyTopics(*request) (reply, error) {
	return s.unit(func(flag int32) bool { return flag&flagUnit == 0 && flag&flagUnitSub != 0 })
}

// WIPE_WRITE_PERM_OF_BROKER (205). Field: brokerName!. Answer: field wipeTopicCount. Producers then leave the broker.
func (s *Server) wipeWritePerm(r *request) (reply, error) {
	return s.changePerm(r, "wipeTopicCount", func(perm int32) int32 { return perm &^ mq.PermWrite })
}

// ADD_WRITE_PERM_OF_BROKER (327). Field: brokerName!. Answer: field addTopicCount. Differs from the original: a template topic stays one.
func (s *Server) addWritePerm(r *request) (reply, error) {
	return s.changePerm(r, "addTopicCount", func(perm int32) int32 { return perm | mq.PermRead | mq.PermWrite })
}

func (s *Server) changePerm(r *request, count string, change func(int32) int32) (reply, error) {
	name := r.Str("brokerName")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	n := s.routes.setPerm(name, change)
	s.log.Info("permission of a broker's topics changed", "broker", name, count, n, "by", r.conn.RemoteAddr())
	return reply{ext: map[string]string{count: mq.Itoa(n)}}, nil
}

// DELETE_TOPIC_IN_NAMESRV (216). Fields: topic!, clusterName. mqadmin deleteTopic, after the brokers have forgotten it.
func (s *Server) deleteTopic(r *request) (reply, error) {
	topic, cluster := r.Str("topic"), r.StrOr("clusterName", "")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	s.routes.deleteTopic(topic, cluster)
	s.log.Info("topic deleted", "topic", topic, "cluster", cluster, "by", r.conn.RemoteAddr())
	return reply{}, nil
}

// REGISTER_TOPIC_IN_NAMESRV (217). Field: topic!; body TopicRouteData, of which queueDatas counts. Ignored when one of the brokers is
// unknown.
func (s *Server) registerTopic(r *request) (reply, error) {
	topic := r.Str("topic")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	var route mq.TopicRouteData
	if err := mq.Unmarshal(r.body, &route); err != nil {
		return reply{}, err
	}
	return reply{}, s.routes.addTopic(topic, route.QueueDatas)
}
