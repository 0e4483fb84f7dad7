const { sentences, temperatures } = JSON.parse(document.getElementById("data").textContent);
attentionView(document.getElementById("attention"), sentences, temperatures);
