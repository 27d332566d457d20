// Answers requests as Kubernetes' own admission plugins do for policies: k8s.io/apiserver has them, an API server calls
// them with what it has just been asked, and this program with what it reads.
//
//	admit FILE...    the policies and bindings that are in force; each line of standard input is a request, each line
//	                 of standard output the object as it is admitted, or why it is not: {"object": ..., "error": "..."}
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi"
)

type request struct {
	Operation admission.Operation
	Resource  string
	Object    json.RawMessage
	OldObject json.RawMessage
	User      struct {
		Username string
		Extra    map[string][]string
	}
}

type answer struct {
	Object runtime.Object `json:"object,omitempty"`
	Error  string         `json:"error,omitempty"`
}

// A client whose server tells of a pod's schema that there is one: a JSON patch, which our policies have, asks for no more.
type client struct{ kubernetes.Interface }

type schemas struct{ discovery.DiscoveryInterface }

type core struct{}

const anyPod = `{"openapi": "3.0.0", "components": {"schemas": {"io.k8s.api.core.v1.Pod": {"type": "object",
	"x-kubernetes-preserve-unknown-fields": true,
	"x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Pod"}]}}}}`

func (c client) Discovery() discovery.DiscoveryInterface { return schemas{c.Interface.Discovery()} }

func (schemas) OpenAPIV3() openapi.Client { return schemas{} }

func (schemas) Paths() (map[string]openapi.GroupVersion, error) {
	return map[string]openapi.GroupVersion{"api/v1": core{}}, nil
}

func (core) Schema(string) ([]byte, error) { return []byte(anyPod), nil }

func (core) ServerRelativeURL() string { return "api/v1" }

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "admit:", err)
		os.Exit(1)
	}
}

// The server's defaults of what a policy leaves out.
func fillIn(matched *admissionv1.MatchResources) {
	equivalent := admissionv1.Equivalent
	matched.MatchPolicy = &equivalent
	matched.NamespaceSelector, matched.ObjectSelector = &metav1.LabelSelector{}, &metav1.LabelSelector{}
}

// The objects of files, which a server would have been given by kubectl.
func objects(paths []string) []runtime.Object {
	found := []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}
	for _, path := range paths {
		file, err := os.Open(path)
		check(err)
		documents := yaml.NewYAMLReader(bufio.NewReader(file))
		for text, err := documents.Read(); err == nil; text, err = documents.Read() {
			object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
			check(err)
			if kind.GroupVersion() == admissionv1.SchemeGroupVersion {
				switch policy := object.(type) {
				case *admissionv1.MutatingAdmissionPolicy:
					fillIn(policy.Spec.MatchConstraints)
				case *admissionv1.ValidatingAdmissionPolicy:
					fillIn(policy.Spec.MatchConstraints)
				}
				found = append(found, object)
			}
		}
	}
	return found
}

func object(text json.RawMessage) (runtime.Object, schema.GroupVersionKind) {
	if len(text) == 0 || string(text) == "null" {
		return nil, schema.GroupVersionKind{}
	}
	found, kind, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	check(err)
	return found, *kind
}

func attributes(asked request) admission.Attributes {
	now, kind := object(asked.Object)
	before, kindBefore := object(asked.OldObject)
	if now == nil {
		kind = kindBefore
	}
	var options runtime.Object = &metav1.CreateOptions{}
	named := now
	if named == nil {
		named = before
	}
	accessor, err := meta.Accessor(named)
	check(err)
	resource := kind.GroupVersion().WithResource(asked.Resource)
	by := &user.DefaultInfo{Name: asked.User.Username, Extra: asked.User.Extra}
	return admission.NewAttributesRecord(now, before, kind, accessor.GetNamespace(), accessor.GetName(), resource, "",
		asked.Operation, options, false, by)
}

func main() {
	check(os.Setenv("KUBE_FEATURE_WatchListClient", "false")) // which the fake client does not speak
	stop := make(chan struct{})
	server := client{fake.NewClientset(objects(os.Args[1:])...)}
	shared := informers.NewSharedInformerFactory(server, 0)
	mapper := meta.NewDefaultRESTMapper(nil)
	dynamic := dynamicfake.NewSimpleDynamicClient(scheme.Scheme)
	prepare := initializer.New(server, dynamic, shared, authorizerfactory.NewAlwaysAllowAuthorizer(),
		utilfeature.DefaultFeatureGate, nil, stop, mapper)

	mutator, err := mutating.NewPlugin(nil)
	check(err)
	validator, err := validating.NewPlugin(nil)
	check(err)
	for _, plugin := range []admission.Interface{mutator, validator} {
		prepare.Initialize(plugin)
		if wants, ok := plugin.(initializer.WantsRESTMapper); ok {
			wants.SetRESTMapper(mapper)
		}
		check(plugin.(admission.InitializationValidator).ValidateInitialization())
	}
	shared.Start(stop)
	shared.WaitForCacheSync(stop)
	if !mutator.WaitForReady() || !validator.WaitForReady() {
		check(fmt.Errorf("the plugins are not ready"))
	}

	interfaces := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	write := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var asked request
		check(json.Unmarshal(lines.Bytes(), &asked))
		of := attributes(asked)
		err := mutator.Admit(context.Background(), of, interfaces)
		if err == nil {
			err = validator.Validate(context.Background(), of, interfaces)
		}
		if err != nil {
			check(write.Encode(answer{Error: err.Error()}))
		} else {
			check(write.Encode(answer{Object: of.GetObject()}))
		}
	}
	check(lines.Err())
}
